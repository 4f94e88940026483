// Package verbs is the provider for RDMA devices: VIA over queue pairs of
// libibverbs, connected by librdmacm. Its wire protocol is that of package
// roce, so the two interoperate.
//
//	  via.Link                                          via.AdapterCQ
//	Post… │ Doorbell                                          │ Poll, Arm
//	      ▼                                                   ▼
//	    link ── one call per batch ──▶ queue pair ═ device ═▶ completion queue
//	                                       ▲
//	Connect, Listen ─▶ adapter ─ a goroutine for rdma_cm and async events
//
// The provider is part of builds with the tag verbs and cgo. In other builds,
// Open returns [ErrNotBuilt]. A shim in C posts and polls batches. It receives
// arrays of numbers and keeps no Go pointer. The device accesses arenas and
// other mapped memory, never Go's heap.
//
// The data path, in order:
//
//	1 post.go    a work waits for the doorbell
//	2 post.go    the doorbell posts all waiting works in one call
//	3 cq.go      a poll receives completions, in one call
//	4 report.go  a completion ends several works: only the last is signaled
package verbs
