package block

// Mapped is a Device whose content is memory of this process, as a disk in
// memory is. Its user may move data from and to the memory itself and leave the
// queue out: a load is a Read, a store is a Write that is as durable as it will
// ever be. Requests are checked as for the queue. A wrapper does not pass
// Mapped on, because its user would bypass the wrapper.
type Mapped interface {
	Device

	// Memory returns the content, Info().Size bytes outside the Go heap, valid
	// until Close. It is accessed only while its range is held, and after
	// Access.
	Memory() []byte

	// Access says that a range, which is held, is about to be read or written
	// in the memory. It returns false if a read has to go to the queue, because
	// it would allocate memory for zeroes.
	Access(off, length int64, write bool) bool

	// Ranges returns the range lock that serializes accesses to the memory and
	// the requests of queues. A transfer that depends on a remote peer uses
	// [Ranges.TryAcquire], never [Ranges.Acquire], and falls back to the queue.
	Ranges() *Ranges
}
