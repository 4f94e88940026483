package history

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// ErrUndecided says that there was no time to check a history.
var ErrUndecided = errors.New("the history is not decided")

// register is a block: it holds the value that was written last.
var register = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, _ any) (bool, any) {
		if o := input.(Operation); o.Write {
			return true, o.Value
		} else {
			return state.(uint64) == o.Value, state
		}
	},
	Hash:              func(state any) uint64 { return state.(uint64) },
	DescribeOperation: func(input, _ any) string { return input.(Operation).String() },
	DescribeState:     func(state any) string { return name(state.(uint64)) },
}

// name is how a value is printed: by the client that wrote it and which of its
// writes it was.
func name(value uint64) string {
	if value == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d of client %d", uint32(value), value>>32)
}

// Violation is a block that no order of its operations explains.
type Violation struct {
	Block      int64
	Operations int
	info       porcupine.LinearizationInfo
}

// Error implements error.
func (v *Violation) Error() string {
	return fmt.Sprintf("block %d is not linearizable in its %d operations", v.Block, v.Operations)
}

// Visualize writes a page that shows the operations of the block, and how far
// they can be explained.
func (v *Violation) Visualize(path string) error {
	return porcupine.VisualizePath(register, v.info, path)
}

// effective returns the operations without the writes that can no longer take
// effect and that no read saw: they need no place in an order.
func effective(operations []Operation) []Operation {
	type place struct {
		block int64
		value uint64
	}
	seen := make(map[place]bool)
	for _, o := range operations {
		if !o.Write {
			seen[place{o.Block, o.Value}] = true
		}
	}
	return slices.DeleteFunc(operations, func(o Operation) bool {
		return o.Lost && o.Until > 0 && !seen[place{o.Block, o.Value}]
	})
}

// Check returns nil if the history is linearizable, a [Violation] if it is not,
// and [ErrUndecided] if there is no time to know. Nothing is added meanwhile.
func (h *History) Check(limit time.Duration) error {
	blocks := make(map[int64][]porcupine.Operation)
	for _, o := range effective(h.Operations()) {
		blocks[o.Block] = append(blocks[o.Block], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.end()})
	}
	deadline := time.Now().Add(limit)
	var undecided error
	for block, operations := range blocks {
		left := max(time.Until(deadline), 1) // 0 has no limit
		switch porcupine.CheckOperationsTimeout(register, operations, left) {
		case porcupine.Illegal:
			// The verbose check also finds how far the block can be explained.
			_, info := porcupine.CheckOperationsVerbose(register, operations, left)
			return &Violation{block, len(operations), info}
		case porcupine.Unknown:
			undecided = fmt.Errorf("%w: block %d with %d operations takes longer than %v", ErrUndecided, block, len(operations), limit)
		}
	}
	return undecided
}
