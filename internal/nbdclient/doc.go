// Package nbdclient is an NBD export of another server as a [block.Device].
//
// A queue has a connection of its own, which the owner of the queue drives,
// where the server promises that a flush of one connection covers the others
// (MULTI_CONN). Otherwise all queues share one, which a goroutine drives.
//
// The package trusts no server: replies are checked in private memory, data
// reaches only the memory of the request that it answers, and a server that
// breaks the protocol loses its connections. internal/nbd has the handshake.
//
// A lost connection is opened again, see [Config]. NBD cannot tell a server
// that was started again, and lost writes, from one that did not; so a disk
// with writes that were not flushed fails when it loses its server.
package nbdclient
