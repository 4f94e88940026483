package block

// FileMapped is a Device whose content is mapped beside its queues: a file in
// the page cache. Its user may take the data of a Read from the mapping while
// that is resident; everything else goes through a queue, so that a write has
// the errno and the durability of a write. Requests are checked as for the
// queue. A wrapper does not pass FileMapped on, because its user would bypass
// the wrapper; [Adjust] does.
type FileMapped interface {
	Device

	// Mapping returns the content, Info().Size bytes that are only read, valid
	// until Close. An access to a page that is not resident may block; an
	// access beyond the present end of the file, or to a page that its disk
	// cannot read, is a SIGBUS.
	Mapping() []byte

	// Resident reports whether a range of the mapping is in memory now, and
	// within the file. It neither blocks nor allocates. The answer may be stale
	// at once: the file may be truncated or evicted meanwhile.
	Resident(off, n int64) bool

	// Ranges returns the range lock that serializes reads of the mapping and
	// the requests of queues: the mapping is read only while its range is held.
	Ranges() *Ranges
}
