// Package shm is the shared-memory provider: it joins two processes of one host.
//
// Each end of a connection owns one sealed memfd, its segment, which it alone can
// write and which the peer maps read-only:
//
//	segment = control words │ table of exposed regions │ ring of outgoing records
//
// A Send is copied into the sender's ring and from there, by the receiver, into
// the posted receive: what a receiver looks at is its private copy. RDMA is one
// copy by the requester between its own memory and the peer's arena, which the
// peer passed as a memfd; the table of exposed regions says what may be touched.
// A doorbell is a store; it costs a system call only when the peer sleeps. To poll
// is to look at the tails of a few links; the peers of many keep a journal, which
// says whose tail moved.
//
// # Reliability
//
// Memory neither loses nor changes anything, so reliable delivery is what remains
// when nothing is added: records are read in order, and an error ends the
// connection. Unreliable delivery drops what finds no room in the ring or no
// receive behind it (unreliable.go); reliable reception takes the position up to
// which the peer has read for an acknowledgement (acknowledge.go). What fails at
// one end and concerns the other travels as a notice in the ring (notice.go).
// Sequence numbers tell what is missing or there twice (integrity.go); a fabric
// under test, whose faults the sender applies to its own records, adds checksums
// (faults.go).
//
// # What the kernel enforces and what the peers owe each other
//
// A peer can write nothing but its own segment, its own journals and the arenas in
// which regions of the connection's protection tag are exposed to it: other memory is never passed.
// Within such an arena the table of regions is honoured by the requester; a
// hostile process may touch the whole arena. Arenas hold payload only, so it
// harms its own data. Every word that a peer can change is loaded once, copied
// and then checked; a peer that breaks the rules loses its connection. It may have
// 256 arenas of 4 TiB together at a time. One that is stopped inside a copy keeps
// that region from being deregistered cleanly until it goes on or dies.
//
// A process is admitted by its user as the kernel tells it: the same user, root,
// and whom the options name.
package shm
