// Package target serves disks over VIA: the storage server's half of the block
// protocol.
//
// Each VIA connection has one worker, a goroutine locked to its thread, that owns
// the connection's carrier, its bounce pool, its slots and one queue of every
// export in use. Nothing on the data path is shared between workers, so nothing
// there is locked. Sessions and exports are shared and have a lock, which only
// login, open, close and teardown take.
//
// A command travels
//
//	receive.go  1 a message arrived: decode, check against the session
//	execute.go  2 get memory, pull a Write's payload by RDMA Read
//	            3 submit to the backend's queue
//	reply.go    4 the backend is done: place a Read's data by RDMA Write,
//	              answer by immediate or by a reply capsule
//	            5 the answer is out: release memory, free the slot
//
// The target exposes no memory: every region it registers is local. A peer that
// breaks a rule loses its connection, and nothing else.
package target
