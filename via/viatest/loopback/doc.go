// Package loopback is the reference provider: the devices of one [Network]
// reach each other by host name inside one process. It shows the provider
// contract in the fewest lines and runs the whole conformance kit; a lock per
// operation makes it slow, and nothing else should be measured against it.
//
// A doorbell carries out what was posted, on the sender's goroutine: a Send is
// a copy into the receive at the head of the peer's queue, an RDMA operation a
// copy to or from the peer's region after the checks. Both ends' completions go
// to their queues at once.
//
// Lock order: conn.mu, Network.access (shared), queue.mu.
package loopback
