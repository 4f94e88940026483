// Package nbdtest asks an NBD server, by raw bytes and from outside, whether it
// does what the NBD protocol document says (doc/proto.md of the project
// NetworkBlockDevice/nbd). It knows nothing of viablk, so that the same
// questions go to every server. It is for tests.
//
// A [Statement] is one sentence of the protocol, or one attack of the past,
// that a server fulfils or not. Statements have the numbers by which documents
// and other tests call them: H for the handshake, T for transmission, S for
// structured replies, extended headers and contexts, and the numbers of CVEs.
package nbdtest
