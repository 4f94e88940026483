package transfer

import "bytes"

// data returns what a job read of a disk; nil is zeroes.
func (j *job) data(index int) []byte {
	if index == 0 && j.sourceZero || index == 1 && j.destinationZero {
		return nil
	}
	return j.memory[index][:j.length]
}

// compare compares both sides of a piece.
func (w *worker) compare(j *job) {
	first, count := difference(j.data(0), j.data(1))
	if count == 0 {
		w.counts.same.Add(j.length)
		return
	}
	w.differ(j.off+first, count, j.length)
}

// difference returns the index of the first byte that differs, and how many do.
// Nil is as many zeroes as the other has bytes.
func difference(a, b []byte) (first, count int64) {
	if a == nil {
		a, b = b, a
	}
	if b == nil && isZero(a) || b != nil && bytes.Equal(a, b) {
		return 0, 0
	}
	for i, x := range a {
		y := byte(0)
		if b != nil {
			y = b[i]
		}
		if x == y {
			continue
		}
		if count == 0 {
			first = int64(i)
		}
		count++
	}
	return first, count
}

// isZero reports whether bytes are all zero. It compares them with those one
// further, which is fast.
func isZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}

// zeroPage is what a digest gets of a hole.
var zeroPage [64 << 10]byte

// digest adds the content of a piece to the digest.
func (w *worker) digest(j *job) {
	if !j.sourceZero {
		w.config.Digest.Write(j.data(0)) // which has no error
		return
	}
	for left := j.length; left > 0; {
		n := min(left, int64(len(zeroPage)))
		w.config.Digest.Write(zeroPage[:n])
		left -= n
	}
}
