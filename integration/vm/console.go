package vm

import "sync"

// console keeps the end of what a machine and its emulator say. It is safe for
// concurrent use.
type console struct {
	mu   sync.Mutex
	text []byte
}

// consoleLimit is how much is kept, bytes.
const consoleLimit = 256 << 10

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p...)
	if excess := len(c.text) - consoleLimit; excess > 0 {
		c.text = append(c.text[:0], c.text[excess:]...)
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.text)
}
