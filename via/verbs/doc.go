// Package verbs is the provider for RDMA devices: VIA over queue pairs of libibverbs,
// connected by librdmacm. It speaks on the wire what package roce speaks, so that
// either end of a connection may be the one or the other.
//
//	       via.Link                          via.AdapterCQ
//	Post… │ Doorbell                          │ Poll, Arm
//	      ▼                                   ▼
//	    link ── a batch, one call ──▶ queue pair ══ device ══▶ completion queue
//	                                      ▲
//	Connect, Listen ─▶ adapter ─ rdma_cm and asynchronous events, a goroutine
//
// The provider is part of builds with the tag verbs and cgo. Other builds have its
// name, and [ErrNotBuilt] says how to get it. A shim in C posts and polls batches; it
// gets arrays of numbers, and no pointer of Go's is kept by it. What the device
// touches are arenas and other mapped memory, never Go's heap.
//
// A request goes this way:
//
//	1 post.go    a work waits for the doorbell
//	2 post.go    the doorbell hands all that wait to the queue pair, in one call
//	3 cq.go      a poll takes completions, in one call
//	4 report.go  one of them may end several works: only the last of a batch asks for it
package verbs
