// Package loopback is the reference provider: the devices of one [Network]
// reach each other by host name inside one process, at all three reliability
// levels. It shows the provider contract in the fewest lines and runs the whole
// conformance kit; a lock per operation and a copy more than needed make it
// slow, and nothing else should be measured against it.
//
// A doorbell carries out what was posted, on the sender's goroutine and through
// both ends: a work becomes a unit on the wire, with a number, a length and a
// checksum; the other end checks it, copies its bytes to where they belong, and
// answers where the sender waits for an answer. Both ends' completions go to
// their queues at once.
//
//	                        done when       an error
//	unreliable delivery     in flight       is told, and breaks nothing
//	reliable delivery       in flight       breaks the connection
//	reliable reception      answered        the same, and is in the answer
//	any RDMA Read           answered        the same
//
// Nothing goes out while a work waits for its answer, so that after a failing
// one nothing later is delivered.
//
// LinkConfig.Faults strike a unit where it goes onto the wire, and that of an
// RDMA Read its answer. The fault is detected as on a real fabric: numbers find
// what is lost, late or there twice, lengths what is cut off, checksums what is
// corrupt. Nothing repairs: what comes late, behind its successor, is dropped
// at unreliable delivery and a loss at the others, unless the sender was
// waiting for its answer.
//
// Lock order: conn.mu, Network.access (shared), queue.mu.
package loopback
