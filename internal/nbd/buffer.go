package nbd

import "sync"

// Sizes of receive buffers, in bytes. A connection begins with a small one,
// gets a large one when a receive has filled that, and has none while it is
// parked.
const (
	// smallBuffer holds the requests of a client that waits for its replies,
	// with the payload of a small WRITE.
	smallBuffer = 8 << 10

	// bufferSize is as much as fio gets into a UNIX socket at default sizes.
	bufferSize = 256 << 10
)

// The buffers that no connection has now. Data of another client may still be
// in them: a connection looks only at what it has received.
var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}
)

// widen returns a buffer of the next size that begins with keep, a part of b,
// and takes b: none becomes a small one, and a small one a large one.
func widen(b, keep []byte) []byte {
	var wider []byte
	switch len(b) {
	case 0:
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	case smallBuffer:
		wider = largeBuffers.Get().(*[bufferSize]byte)[:]
	default:
		wider = b
	}
	copy(wider, keep)
	if len(b) != len(wider) {
		recycle(b)
	}
	return wider
}

// recycle takes a buffer that is not used any more.
func recycle(b []byte) {
	switch len(b) {
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b))
	case bufferSize:
		largeBuffers.Put((*[bufferSize]byte)(b))
	}
}
