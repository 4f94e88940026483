package workload

// Region is a file, or a zone of a disk, as one user sees it. One goroutine
// uses it.
type Region interface {
	// Kinds returns what can be done to it.
	Kinds() []Kind

	// Limits returns what holds for operations.
	Limits() Limits

	// Do does it: a read fills p, of which it returns how much there was, and a
	// write writes all of p. Of other operations p is nil.
	Do(o Op, p []byte) (int, error)

	// Size returns how long the region is, in bytes.
	Size() (int64, error)
}

// Limits are what holds for operations on a region.
type Limits struct {
	Size   int64 // bytes; no operation goes beyond, and one that Fixed is has so many
	Fixed  bool  // the size does not change
	Direct int64 // bytes, of which offsets and lengths past the page cache are multiples
	Block  int64 // bytes, likewise for Collapse, Insert, Discard and ZeroOut
}
