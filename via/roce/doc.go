// Package roce is the provider for RoCEv2: VIA over InfiniBand transport
// packets in UDP datagrams, by user-level code over kernel sockets. It needs no
// RDMA hardware and no privilege, and interoperates with RDMA adapters.
//
//	       via.Link                      via.AdapterCQ
//	Post… │ Doorbell                      │ Poll, Arm
//	      ▼                               ▼
//	    link ── works ──▶ rc.QP ◀── engine: a pass ──▶ port.Shard ══ network
//	                                      ▲
//	Connect, Listen ─▶ endpoint ─ cm.Manager, a goroutine
//
// An endpoint is one UDP address. It has shards, each with a socket: a shard is
// what one worker polls for one completion queue, and workers of different
// shards share nothing. A pass of a shard receives packets, hands them to the
// queue pairs of its links, and transmits their responses. A goroutine that
// needs a pass tries to acquire the shard; if another goroutine owns it, it
// sets the rerun state and does not wait. A queue pair keeps completions until
// its consumer polls, so any goroutine may run the pass.
//
// Types say who may access what: a shard and its notices are for any goroutine;
// its engine, and the transport of each link, for the goroutine that has
// acquired the shard; the rest of a link for its consumer.
//
// The goroutine of an endpoint is its connection manager, and runs the passes
// of shards whose consumers do not poll: RDMA needs no consumer at the
// responder.
//
// The path of a request:
//
//	1 post.go        the consumer posts a work, which waits for the doorbell
//	2 engine.go      the doorbell runs a pass, which hands over the work
//	3 transmit.go    the queue pair makes packets, and the engine sends them
//	4 receive.go     the peer: the engine finds the link and checks packets
//	5 memory.go      regions and tags decide which memory RDMA may access
//	6 completion.go  the engine lists completions, which the consumer polls
package roce
