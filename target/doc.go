// Package target serves disks over VIA: the storage server's half of the block
// protocol.
//
// Each VIA connection has one worker, which a loop drives with others. The
// server and other workers touch only the conn of a connection: signals and
// published counters. All else is in the worker, which no other goroutine can
// reach, and there each part has one owner:
//
//	controller   control messages, events, logout     (control.go)
//	handleTable  open exports and their queues        (handle.go)
//	receiver     slots, credits, checks of commands   (receive.go)
//	executor     payload memory, ranges, the backend  (execute.go)
//	sender       RDMA, answers, the order of sends    (send.go)
//	sleeper      busy-polling and sleep               (sleeper.go)
//	             the share of a visit                 (visit.go)
//	peerWatch    silence of the initiator             (watch.go)
//
// Nothing on the data path is shared between workers, so nothing there is
// locked. Sessions and exports are shared and have a lock, which only login,
// open, close and teardown take. A command travels as flow.go says.
//
// The target exposes no memory: every region it registers is local. A peer that
// breaks a rule loses its connection, and nothing else.
package target
