// Package via is a Virtual Interface Architecture user agent: NICs, protection
// tags, registered memory, descriptors in VIA's byte layout, VIs with their
// four states, work queues, completion queues, doorbells, connections and
// asynchronous errors, written once for every fabric.
//
// Below it stands a [Provider], which moves bytes, reports completions and
// knows none of the rules; above it a consumer that posts descriptors:
//
//	consumer ─ Descriptor ─▶ VI ─ Work ─▶ Link (provider) ══ fabric ══ peer
//	consumer ◀─ Completion ─ CQ ◀─ Done ─ AdapterCQ (provider)
//
// The kernel agent's part (connection set-up, registration, teardown) runs on
// its own path; the data path (post, doorbell, poll) never enters it.
//
// # Not on the block data path
//
// Some files exist for parity with VIPL alone. The block service neither calls
// nor pays for them: peer-to-peer connections (peer.go), notifications
// (notify.go), single-queue completion (done.go) and its waits (sleep.go), the
// name service (nameservice.go, hosts.go) and discovery (discover.go). A reader
// of the block path skips them; package vipl and the kit of viatest use them.
//
// # Concurrency
//
// A NIC, its tags, memory and listeners are safe for concurrent use. A VI and
// the completion queues it is bound to are driven by one goroutine at a time:
// no lock is taken to post or to poll. VIPL calls this ThreadSafe = false.
//
// # Ownership
//
// A posted descriptor and the memory of its segments belong to the provider
// until the descriptor completes. Memory that may be registered comes from a
// NIC's [Arena]; it is mapped outside the Go heap and never moves.
//
// Sources: VIA Specification 1.0; Intel VI Architecture Developer's Guide 1.0.
package via
