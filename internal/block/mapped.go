package block

// Mapped is a Device whose content is memory of this process, as a disk in
// memory is. Its user may move data from and to the memory itself and leave the
// queue out: a load is a Read, a store is a Write that is as durable as it will
// ever be. What a request may do is checked as for the queue. A wrapper does not
// pass Mapped on: its user would go past it.
type Mapped interface {
	Device

	// Memory returns the content, Info().Size bytes outside the Go heap, valid until
	// Close. It is accessed only while its range is held.
	Memory() []byte

	// Ranges returns what keeps accesses to the memory and the requests of queues
	// apart. A range that a peer has a part in moving is not waited for with
	// [Ranges.Acquire] but tried: the queue is for who comes too late.
	Ranges() *Ranges
}
