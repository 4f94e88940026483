package block

// Counts count the requests of a user of devices. One goroutine counts.
type Counts struct {
	Reads        uint64 `json:"reads"`
	Writes       uint64 `json:"writes"`
	Flushes      uint64 `json:"flushes"`
	Trims        uint64 `json:"trims"`
	WriteZeroes  uint64 `json:"write_zeroes"`
	Statuses     uint64 `json:"block_status"`
	Prefetches   uint64 `json:"prefetches"`
	BytesRead    uint64 `json:"bytes_read"`
	BytesWritten uint64 `json:"bytes_written"`
}

// Count counts a request of n bytes.
func (c *Counts) Count(op Op, n uint64) {
	switch op {
	case Read:
		c.Reads++
		c.BytesRead += n
	case Write:
		c.Writes++
		c.BytesWritten += n
	case Flush:
		c.Flushes++
	case Trim:
		c.Trims++
	case WriteZeroes:
		c.WriteZeroes++
	case Status:
		c.Statuses++
	case Prefetch:
		c.Prefetches++
	}
}

// Requests returns the number of requests of all kinds.
func (c *Counts) Requests() uint64 {
	return c.Reads + c.Writes + c.Flushes + c.Trims + c.WriteZeroes + c.Statuses + c.Prefetches
}

// Add adds the counts of another user.
func (c *Counts) Add(o *Counts) {
	c.Reads += o.Reads
	c.Writes += o.Writes
	c.Flushes += o.Flushes
	c.Trims += o.Trims
	c.WriteZeroes += o.WriteZeroes
	c.Statuses += o.Statuses
	c.Prefetches += o.Prefetches
	c.BytesRead += o.BytesRead
	c.BytesWritten += o.BytesWritten
}
