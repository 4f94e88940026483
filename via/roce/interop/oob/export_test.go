package oob

// Parse reads a line.
func Parse(b []byte) (End, error) { return parse(b) }

// Line makes a line.
func (e End) Line() ([]byte, error) { return e.line() }
