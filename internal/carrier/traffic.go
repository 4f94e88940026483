package carrier

import "github.com/viablk/viablk/via"

// Traffic is what connections moved, for people and programs to read.
type Traffic struct {
	MessagesSent     uint64 `json:"messages_sent"`
	MessagesReceived uint64 `json:"messages_received"`
	RdmaWrites       uint64 `json:"rdma_writes"`
	RdmaReads        uint64 `json:"rdma_reads"`
	Doorbells        uint64 `json:"doorbells"` // system calls that woke the peer
	BytesCopied      uint64 `json:"bytes_copied"`
	Stalls           uint64 `json:"stalls"`        // times the fabric had no room
	SealedBytes      uint64 `json:"sealed_bytes"`  // ciphertext, both directions
	Forged           uint64 `json:"forged"`        // messages and payload that a seal refused
	DigestErrors     uint64 `json:"digest_errors"` // payload that its digest refused
}

// CountDigestError counts payload of the owner's that its digest refused.
func (c *Carrier) CountDigestError() { c.digestErrors++ }

// Traffic returns the counters of the carrier's connections.
func (c *Carrier) Traffic() Traffic {
	t := trafficOf(c.vi.Stats())
	t.SealedBytes, t.Forged, t.DigestErrors = c.sealedBytes, c.forged, c.digestErrors
	t.Add(&c.past)
	return t
}

func trafficOf(l via.LinkStats) Traffic {
	return Traffic{
		MessagesSent: l.Sends, MessagesReceived: l.Receives, RdmaWrites: l.RdmaWrites, RdmaReads: l.RdmaReads,
		Doorbells: l.Doorbells, BytesCopied: l.BytesCopied, Stalls: l.Stalls,
	}
}

// Add adds another connection's counters.
func (t *Traffic) Add(o *Traffic) {
	t.MessagesSent += o.MessagesSent
	t.MessagesReceived += o.MessagesReceived
	t.RdmaWrites += o.RdmaWrites
	t.RdmaReads += o.RdmaReads
	t.Doorbells += o.Doorbells
	t.BytesCopied += o.BytesCopied
	t.Stalls += o.Stalls
	t.SealedBytes += o.SealedBytes
	t.Forged += o.Forged
	t.DigestErrors += o.DigestErrors
}
