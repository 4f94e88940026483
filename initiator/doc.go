// Package initiator attaches remote disks over VIA. A [Device] is a disk at a
// target; its queues implement the device contract, and for callers in Go it
// reads and writes like a file.
//
// A session has a control connection, with a goroutine that keeps it alive, and
// one I/O connection for each queue. The owner of a queue drives it: the data
// path shares no state and takes no lock.
//
// A request travels
//
//	submit.go    1 allocate slots, cut the request into commands
//	             2 place small payload inside the command, expose larger
//	               payload to the target's RDMA
//	             3 ring one doorbell for the batch
//	complete.go  4 check an immediate or a reply against its slot
//	             5 complete the request with its last answer
//	payload.go   6 free memory and credit when the owner has used the data
//
// A [Queue] joins owners of its parts: requestTable the requests, slotTable the
// commands, payload the memory, poster the doorbell, keepalive the target's
// silence, reconnectState the way back. While a queue reconnects, its redialer
// has the connection, and nothing else of the queue.
//
// The target may access the queue's bounce pool, under the protection tag of
// the connection, and leased granules of [Device.Alloc].
package initiator
