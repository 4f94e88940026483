package nbdclient

import "slices"

// maximumRuns bounds the runs of a coverage: a server that sends more pieces
// without filling gaps is not followed any longer.
const maximumRuns = 4096

// coverage is which bytes of a request its reply has brought so far: runs in
// order, with a gap between any two. The zero coverage is empty.
type coverage struct {
	runs []run
}

// run is bytes from off to end.
type run struct{ off, end int64 }

// add adds n > 0 bytes at off. It returns false, and adds nothing, if some of
// them are covered already, or there are too many runs.
func (c *coverage) add(off, n int64) bool {
	end := off + n
	i := len(c.runs) // of the first run behind off
	for i > 0 && c.runs[i-1].off >= off {
		i--
	}
	if i > 0 && c.runs[i-1].end > off || i < len(c.runs) && c.runs[i].off < end {
		return false
	}
	before := i > 0 && c.runs[i-1].end == off
	behind := i < len(c.runs) && c.runs[i].off == end
	switch {
	case before && behind:
		c.runs[i-1].end = c.runs[i].end
		c.runs = slices.Delete(c.runs, i, i+1)
	case before:
		c.runs[i-1].end = end
	case behind:
		c.runs[i].off = off
	case len(c.runs) == maximumRuns:
		return false
	default:
		c.runs = slices.Insert(c.runs, i, run{off, end})
	}
	return true
}

// whole reports whether the bytes from 0 to n are covered.
func (c *coverage) whole(n int64) bool {
	return len(c.runs) == 1 && c.runs[0] == run{0, n}
}

// reset makes the coverage empty.
func (c *coverage) reset() { c.runs = c.runs[:0] }
