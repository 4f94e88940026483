package netbed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// longestFrame is the longest frame of a capture, bytes.
const longestFrame = 1 << 18

// Frames reads the Ethernet frames of a capture. Each one is new memory.
func Frames(path string) ([][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := frames(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func frames(from io.Reader) ([][]byte, error) {
	r, err := pcapgo.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if link := r.LinkType(); link != layers.LinkTypeEthernet {
		return nil, fmt.Errorf("link type %v is not Ethernet", link)
	}
	r.SetSnaplen(longestFrame)
	var all [][]byte
	for {
		frame, info, err := r.ReadPacketData()
		switch {
		case errors.Is(err, io.EOF) && info.CaptureLength == 0:
			return all, nil
		case errors.Is(err, io.EOF): // behind the header of a frame
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case info.CaptureLength != info.Length:
			return nil, fmt.Errorf("%d bytes of a frame of %d were captured", info.CaptureLength, info.Length)
		}
		all = append(all, frame)
	}
}
