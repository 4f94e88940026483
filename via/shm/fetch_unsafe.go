package shm

import "unsafe"

// expect begins to fetch what an answer to the message just sent will touch at
// this end, while that travels: with many links, little of it is in the cache.
func (l *link) expect() {
	l.fetch()
	if !l.rq.empty() {
		l.rq.first().Fetch()
	}
}

// fetch begins to fetch what a turn for arrivals touches of the link.
func (l *link) fetch() {
	// Safety: the pointers are only hints.
	fetchLine(unsafe.Pointer(&l.recvCQ))
	fetchLine(unsafe.Pointer(&l.in.seq))
	fetchLine(unsafe.Pointer(&l.total))
}

// fetch begins to fetch the next record of a ring, whether or not it is there.
func (r *reader) fetch() {
	at, mask := int(r.head-r.start), len(r.ring)-1
	// Safety: the pointers are only hints, and inside the ring.
	fetchLine(unsafe.Pointer(&r.ring[at&mask]))
	fetchLine(unsafe.Pointer(&r.ring[(at+64)&mask]))
}
