// Package roce is the provider for RoCEv2: VIA over InfiniBand transport packets
// in UDP datagrams, by user-level code over kernel sockets. It needs no RDMA
// hardware and no privilege, and speaks with what has.
//
//	       via.Link                      via.AdapterCQ
//	Post… │ Doorbell                      │ Poll, Arm
//	      ▼                               ▼
//	    link ── works ──▶ rc.QP ◀── lane: a turn ──▶ port.Lane ══ network
//	                                      ▲
//	Connect, Listen ─▶ endpoint ─ cm.Manager, a goroutine
//
// An endpoint is one UDP address. It has lanes, each with a socket: a lane is what
// one worker polls, that is one completion queue, and workers of different lanes
// never meet. A turn of a lane takes packets, hands them to the queue pairs of its
// links, and sends what these have to say. Whoever wants one takes it if it is
// free, else leaves a note for who has it: nobody waits. A queue pair holds on to
// what has ended until its consumer polls, so that it does not matter who takes
// the turn.
//
// The goroutine of an endpoint is its connection manager, and takes the turns of
// lanes that nobody attends: RDMA needs no consumer at the responder.
//
// A request goes this way:
//
//	1 post.go     a work waits for the doorbell
//	2 lane.go     the doorbell takes a turn: the work goes to the queue pair
//	3 lane.go     the queue pair cuts it into packets, and they are sent
//	4 lane.go     at the peer, packets are found to be a link's, and checked
//	5 memory.go   RDMA goes where regions and tags let it
//	6 report.go   what has ended is reported to who polls
package roce
