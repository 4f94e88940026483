// Package nbd serves block devices over the Network Block Device protocol, and
// asks other servers what they export.
//
// A [Server] takes connections from any number of listeners. A connection is
// served by one goroutine that is locked to its OS thread and passes through two
// phases:
//
//	accept ─▶ handshake (blocking, with deadlines) ─▶ transmission (a loop that
//	          chooses an export, opens its queue       never blocks while there
//	                                                   is something to do)
//
// The files follow a request: receive.go takes bytes from the socket and makes
// requests of them, [block.Queue] executes them, reply.go sends the answers, and
// transmission.go is the loop around the three. Everything that a client may get
// wrong is decided in request.go, before anything is reserved for it.
//
// The package speaks fixed newstyle negotiation, simple replies and structured
// replies. It knows nothing of what is behind a device, and does not speak TLS,
// metadata contexts or extended headers: it refuses them as the protocol
// prescribes for servers without them.
//
// Sections named in comments are those of the NBD protocol document, doc/proto.md
// of the reference implementation.
package nbd
