package rc

// Access is how a peer accesses memory.
type Access uint8

// The accesses.
const (
	RemoteWrite Access = iota
	RemoteRead
)

// Memory resolves memory for one QP. The QP asks before every access, so that
// memory can be withdrawn at any time. The QP uses the result before its call
// returns; for responses of a Read and for segments of works, until the packets
// of that Emit are sent.
type Memory interface {
	// Remote returns the bytes that a key and an address name, or nil if the
	// peer has no such access to them. Length is at least 1; addr+length does
	// not overflow.
	Remote(key uint32, addr uint64, length int, access Access) []byte

	// Local reports whether the QP may still access the segments of the work or
	// receive with this ID.
	Local(id uint64) bool
}
