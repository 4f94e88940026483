package via

import (
	"unsafe"

	"github.com/viablk/viablk/internal/prefetch"
)

// Fetch begins to bring to the processor what the end of the work will touch. A
// provider that holds the work calls it when that is likely to come soon: with
// many VIs, little of it is in the cache.
func (w *Work) Fetch() {
	q := w.queue
	if q == nil {
		return // the work is no VI's
	}
	d := q.at(uint32(w.place)).desc
	// Safety: the pointers are only hints; they point into live memory, for the
	// work is posted.
	prefetch.Line(unsafe.Pointer(&w.inline))
	prefetch.Line(unsafe.Pointer(&q.posts))
	prefetch.Line(unsafe.Pointer(q.vi))
	prefetch.Line(unsafe.Pointer(unsafe.SliceData(d.b)))
	if len(w.Segments) != 0 {
		prefetch.Line(unsafe.Pointer(unsafe.SliceData(w.Segments[0].Bytes)))
	}
}
