package block

// Windowed is a Device whose content is mapped beside its queues: a file in the
// page cache. Its user may take the data of a Read from the mapping while that is
// resident; everything else goes through a queue, so that a write has the errno and
// the durability of a write. What a request may do is checked as for the queue. A
// wrapper does not pass Windowed on, for its user would go past it; [Adjust] does.
type Windowed interface {
	Device

	// Mapping returns the content, Info().Size bytes that are only read, valid until
	// Close. To touch what is not resident may block, and where the file ends by now,
	// or its disk fails, it is a fault of the process.
	Mapping() []byte

	// Resident reports whether a range of the mapping is in memory now, and
	// within the file. It neither blocks nor allocates. The answer may be out of date at
	// once: nobody holds the file where it is.
	Resident(off, n int64) bool

	// Ranges returns what keeps reads of the mapping and the requests of queues
	// apart: data is taken from the mapping only while its range is held.
	Ranges() *Ranges
}
