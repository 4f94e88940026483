package block

// WriteBacker is a Device that can begin to write its cached data to the
// medium. A wrapper need not pass it on.
type WriteBacker interface {
	Device

	// WriteBack begins to write what is cached, for a caller that will flush
	// it later. It promises nothing, fails nothing, and may block while the
	// medium is busy. A later Flush tells of data that could not be written.
	WriteBack()
}
