// Package joint opens a NIC of several providers: its VIs connect over any of
// them, so that what a VI was connected to over one fabric may be connected to
// again over another. An initiator keeps the paths of a session over it.
//
// A host is that of a part behind the part's name and a colon:
//
//	shm:/run/viablk/t.sock
//	roce:192.0.2.1:4791
//
// A link is the part's own: posts, doorbells and transfers cost what they cost
// there. A completion queue is one of each part, all of which a poll visits. A
// region is registered with each part, under one handle. The limits of the NIC
// are the strictest of its parts, and so is what it promises.
package joint
