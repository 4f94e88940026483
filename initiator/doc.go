// Package initiator attaches remote disks over VIA. A [Device] is a disk at a
// target; its queues implement the device contract, and for callers in Go it
// reads and writes like a file.
//
// A session has a control connection, with a goroutine that keeps it alive, and
// one I/O connection for each queue. A queue is driven by its owner: nothing on
// the data path is shared, so nothing there is locked.
//
// A request travels
//
//	submit.go    1 take slots, cut the request into commands
//	             2 small payload goes inside the command, larger is exposed for
//	               the target's RDMA
//	             3 one doorbell for the batch
//	complete.go  4 an immediate or a reply arrives: check it against the slot
//	             5 when the last command of the request is answered, hand it back
//	memory.go    6 the owner has used the data: memory and credit are free
//
// Memory that the target may touch is the queue's bounce pool, of the
// connection's own protection tag.
package initiator
