package initiator

// Exposed returns the memory that the target of a queue can reach.
func (q *Queue) Exposed() []byte { return q.payload.pool.Memory().Bytes() }

// Checked reports whether what CheckCertificates asked for has begun.
func (d *Device) Checked() bool { return !d.session().recheck.Load() }
