package via

import "unsafe"

// Fetch begins to bring to the processor what the end of the work will touch. A
// provider that holds the work calls it when that is likely to come soon: with
// many VIs, little of it is in the cache.
func (w *Work) Fetch() {
	q := w.queue
	if q == nil {
		return // the work is no VI's
	}
	d := q.at(uint32(w.place)).desc
	// Safety: the pointers are only hints; what they point into is live, for the
	// work is posted.
	fetchLine(unsafe.Pointer(&w.inline))
	fetchLine(unsafe.Pointer(&q.posts))
	fetchLine(unsafe.Pointer(q.vi))
	fetchLine(unsafe.Pointer(unsafe.SliceData(d.b)))
	if len(w.Segments) != 0 {
		fetchLine(unsafe.Pointer(unsafe.SliceData(w.Segments[0].Bytes)))
	}
}
