package initiator

// Exposed returns the memory that the target of a queue can reach.
func (q *Queue) Exposed() []byte { return q.payload.pool.Memory().Bytes() }
