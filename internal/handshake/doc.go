// Package handshake authenticates the two ends of a session: TLS 1.3 of the
// standard library, whose records travel in the messages of [wire.Auth], so
// that any VIA connection carries it. Both ends export keys from it for a
// [seal.Session]. Further connections of the session join it by a proof.
//
// An [Initiator] and a [Target] are state machines: Step takes the message that
// arrived and returns the one to send. Neither performs I/O nor waits for
// anything but its own computation. crypto/tls wants a connection that blocks,
// so each runs it on a goroutine of its own that works only while Step does;
// Close ends it and waits for it, and Step does so with the last message.
//
//	initiator                             target
//	hello: offers, nonce, ClientHello  →
//	                                   ←  continue: choice, nonce, flight
//	flight: …                          →
//	                                   ←  continue
//	flight, last                       →
//	                                   ←  ok: name of the keys
//
// The exporter's context is the hash of the hello and of its answer without
// data: ends that saw other offers, another choice or other nonces have other
// keys. Both ends require a certificate of the other. They name a protocol, so
// that nothing of a handshake of NBD over TLS is taken for one of these.
//
// The peer is told that it was refused, with the alert that TLS has for it, and
// nothing else.
package handshake
