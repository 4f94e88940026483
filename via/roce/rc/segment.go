package rc

// cursor is a position in a list of segments. It moves forward at the cost of
// the segments it passes; only after a loss it starts over.
type cursor struct {
	at     int // bytes from the start of the list
	index  int // segment
	offset int // bytes into it
}

// seek moves to a position not beyond the end.
func (c *cursor) seek(segments [][]byte, at int) {
	if at < c.at {
		*c = cursor{}
	}
	for c.at < at {
		c.step(segments, at-c.at)
	}
}

// step moves by at most n bytes, within one segment, which it returns.
func (c *cursor) step(segments [][]byte, n int) []byte {
	b := segments[c.index][c.offset:]
	if len(b) > n {
		c.at += n
		c.offset += n
		return b[:n]
	}
	c.at += len(b)
	c.index++
	c.offset = 0
	return b
}

// gather appends the pieces of the next n bytes to pieces.
func (c *cursor) gather(segments [][]byte, n int, pieces [][]byte) [][]byte {
	for n > 0 {
		b := c.step(segments, n)
		if len(b) > 0 {
			pieces = append(pieces, b)
		}
		n -= len(b)
	}
	return pieces
}

// scatter copies b to the next bytes.
func (c *cursor) scatter(segments [][]byte, b []byte) {
	for len(b) > 0 {
		b = b[copy(c.step(segments, len(b)), b):]
	}
}

// total returns the length of all segments, bytes.
func total(segments [][]byte) int {
	n := 0
	for _, s := range segments {
		n += len(s)
	}
	return n
}
