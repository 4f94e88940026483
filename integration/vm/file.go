package vm

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/viablk/viablk/integration/vm/agent"
)

// pieceLength is how much of a file one call carries, bytes.
const pieceLength = 256 << 10

// Put makes a file in the machine, and the folders above it.
func (v *VM) Put(path string, data []byte, mode fs.FileMode) error {
	for at := 0; at == 0 || at < len(data); at += pieceLength {
		p := agent.Piece{Path: path, Offset: int64(at), Data: data[at:min(at+pieceLength, len(data))], Mode: mode}
		if err := v.call(context.Background(), "Write", p, &agent.None{}); err != nil {
			return fmt.Errorf("put file %s: %w", path, err)
		}
	}
	return nil
}

// Get returns the content of a file of the machine.
func (v *VM) Get(path string) ([]byte, error) {
	var data []byte
	for {
		var piece []byte
		p := agent.Piece{Path: path, Offset: int64(len(data)), Length: pieceLength}
		if err := v.call(context.Background(), "Fetch", p, &piece); err != nil {
			return nil, fmt.Errorf("get file %s: %w", path, err)
		}
		if len(piece) == 0 {
			return data, nil
		}
		data = append(data, piece...)
	}
}
