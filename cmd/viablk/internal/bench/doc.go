// Package bench measures VIA between two connected ends: the latency of an
// answered message, the rate of messages one way, RDMA beside a plain copy, the
// cost of a post, and what many VIs on one completion queue cost. One end
// measures ([Run]); the other, usually in another process, does what it is told
// ([Serve]).
//
//	Run ── control VI: step, stop, count ──▶ Serve
//	Run ══ data VIs, new for each case ═════▶ Serve: echo, consume, gather
//
// Between ends with a network, its yardsticks are measured, too: round trips of
// UDP datagrams and a stream of TCP, neither of which uses VIA.
//
// Every case gets VIs, completion queue and descriptors of its own, is warmed
// up, and is measured once in each round; what it is compared with is
// measured in the same round. The figures are medians over the rounds.
//
// The loops are what a consumer in a hurry would write: descriptors are built
// once and posted again, receives are posted while the peer works, completions
// are polled in batches, and nothing is allocated. Each end is driven by one
// goroutine that is locked to its thread.
package bench
