package crashcheck

import (
	"errors"
	"fmt"
	"slices"
)

// Found is what a disk held after it came back.
type Found struct {
	Promised int // blocks with what was promised last
	Later    int // with something later
	Torn     int // with sectors of several generations, none of them older than promised
}

// maximumComplaints bounds the broken promises that an error names.
const maximumComplaints = 20

// Check reads a disk after a power cut and compares it with what it had
// promised. The error has a line for every block that is wrong. The content
// becomes the new promise; Check rewrites torn blocks.
func (l *WriteLog) Check(d Disk) (Found, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	var found Found
	var complaints []error
	p := make([]byte, 32*Block)
	for first := 0; first < len(l.blocks); first += len(p) / Block {
		n := min(len(p)/Block, len(l.blocks)-first)
		if _, err := d.ReadAt(p[:n*Block], int64(first)*Block); err != nil {
			return found, fmt.Errorf("read blocks %d to %d: %w", first, first+n-1, err)
		}
		for i := range n {
			whole, err := l.compare(first+i, p[i*Block:][:Block], &found)
			if err != nil {
				complaints = append(complaints, err)
				continue
			}
			if !whole {
				if err := l.rewrite(d, first+i); err != nil {
					return found, err
				}
			}
		}
	}
	if n := len(complaints); n > maximumComplaints {
		complaints = append(complaints[:maximumComplaints], fmt.Errorf("and %d more", n-maximumComplaints))
	}
	return found, errors.Join(complaints...)
}

// compare compares a block, and sets its history to what it holds. It returns
// whether all of it is of one generation.
func (l *WriteLog) compare(block int, p []byte, found *Found) (whole bool, err error) {
	history := l.blocks[block]
	var seen []uint64
	for i := range sectors {
		generation, ok := l.generation(p[i*Sector:][:Sector], uint64(block*sectors+i))
		switch {
		case !ok:
			return false, fmt.Errorf("block %d: sector %d holds what was never written there: % x", block, i, p[i*Sector:][:32])
		case !slices.Contains(history, generation):
			return false, fmt.Errorf("block %d: sector %d is of generation %d; %d was promised, and later there were %v",
				block, i, generation, history[0], history[1:])
		case !slices.Contains(seen, generation):
			seen = append(seen, generation)
		}
	}
	switch {
	case len(seen) > 1:
		found.Torn++
		return false, nil
	case seen[0] == history[0]:
		found.Promised++
	default:
		found.Later++
	}
	l.blocks[block] = seen
	return true, nil
}

// rewrite gives a torn block one generation again.
func (l *WriteLog) rewrite(d Disk, block int) error {
	l.last++
	p := make([]byte, Block)
	l.stamp(p, block, l.last)
	if _, err := d.WriteAtFUA(p, int64(block)*Block); err != nil {
		return fmt.Errorf("write block %d again: %w", block, err)
	}
	l.blocks[block] = history{l.last}
	return nil
}
