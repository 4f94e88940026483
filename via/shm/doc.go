// Package shm is the shared-memory provider: it joins two processes of one
// host.
//
// Each end of a connection owns one sealed memfd, its segment, which it alone
// can write and which the peer maps read-only:
//
//	segment = control words │ table of exposed regions │ ring of records
//
// The sender copies a Send into its ring, the receiver copies it from there
// into the posted receive: the consumer reads a private copy. RDMA is one copy
// by the requester between local memory and the peer's arena, which the peer
// passed as a memfd; the table of exposed regions says what it may access. A
// doorbell is a store; it costs a system call only when the peer sleeps. Poll
// loads the tails of a few links; with many, the peers keep ready logs, which
// name the links whose tails advanced.
//
// # Reliability
//
// Memory neither loses nor changes records, so reliable delivery costs nothing:
// the receiver reads records in order, and an error ends the connection.
// Unreliable delivery drops a message for which the ring has no room or the
// peer no receive (unreliable.go). Reliable reception takes the peer's read
// position as the acknowledgement (acknowledge.go). An end reports an error
// that concerns its peer in a notice in the ring (notice.go). Sequence numbers
// reveal missing and duplicate records (integrity.go). A fabric under test,
// whose faults the sender applies to its own records, adds checksums
// (faults.go).
//
// # Trust
//
// A peer can write only its own segment, its own ready logs and the arenas in
// which regions of the connection's protection tag are exposed to it: the
// provider passes no other memory. Within such an arena the requester respects
// the table of regions; a hostile process may access the whole arena. Arenas
// hold payload only, so it harms its own data. This end loads every word that a
// peer can change once, copies it and then validates it; a peer that breaks the
// rules loses its connection. A peer may have 256 arenas of 4 TiB together at a
// time. While a peer is stopped inside a copy, Deregister of that region fails
// until it continues or dies.
//
// A listener admits a process by the user that the kernel reports: the same
// user, root, and the users of Options.AdmitUIDs. A requester accepts listeners
// of its own user, of root, and of the only user who can write to the folder.
package shm
