// Package nbd serves block devices over the Network Block Device protocol, and
// asks other servers what they export.
//
// A [Server] takes connections from any number of listeners. A connection has
// one goroutine and passes through two phases:
//
//	accept ─▶ handshake (blocking, with deadlines) ─▶ transmission (visits
//	          chooses an export, opens its queue       of a loop)
//
// A loop ([loop.Drive]) has the connection for as long as the client has
// something to say. While it has not, the connection is parked: idle.go.
// admission.go decides which clients are admitted, and which handshakes are
// evicted.
//
// The files follow a request: receive.go takes bytes from the socket and makes
// requests of them, [block.Queue] executes them, reply.go sends the answers,
// transmission.go is an iteration of the three, and visit.go what a loop does
// in one go. Everything that a client may get wrong is decided in request.go,
// before anything is reserved for it.
//
// The package speaks fixed newstyle negotiation with the metadata context
// base:allocation, and simple, structured and extended replies. It knows
// nothing of what is behind a device.
//
// Sections named in comments are those of the NBD protocol document,
// doc/proto.md of the reference implementation.
package nbd
