package rc

// Access is what a peer wants to do with memory.
type Access uint8

// The accesses.
const (
	RemoteWrite Access = iota
	RemoteRead
)

// Memory answers for memory on behalf of one QP. It is asked before every access,
// so that memory can be withdrawn at any time: what it returns is used before
// the call of the QP returns or, for a Read's responses and for segments of
// works, until the packets of that Emit are sent.
type Memory interface {
	// Remote returns the bytes that a key and an address name, or nil if they or
	// the access are not the peer's. Length is at least 1; addr+length does not
	// overflow.
	Remote(key uint32, addr uint64, length int, access Access) []byte

	// Local reports whether the segments of the work or receive with this ID may
	// still be touched.
	Local(id uint64) bool
}
