package initiator

import (
	"errors"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// With Config.Digest, a CRC32C travels with payload. It is computed of a Write
// in the memory that the message or the target's RDMA reads, once that is
// final, and compared of a Read in the memory that the caller gets.
//
// A digest that does not fit ends the connection, whichever end finds that: the
// request is resent on another one, as after any loss. A request whose payload
// does not arrive at the third attempt fails with EIO, and so does one of a
// queue that does not reconnect, at once; the connection goes on then.

// mostCorrupt is how often payload of a request is corrupt until it fails.
const mostCorrupt = 3

var (
	errCorrupt  = errors.New("payload does not fit its data digest")
	errNoDigest = errors.New("log in: the target has no data digests: leave out --data-digest to go without them")
	errChoice   = errors.New("log in: the target chose a data digest that was not offered")
)

// checkDigest checks the choice of a digest against the offer.
func checkDigest(q *wire.LoginRequest, a *wire.LoginResponse) error {
	switch {
	case a.Digest == q.Digest:
		return nil
	case a.Digest == wire.DigestNone:
		return errNoDigest
	}
	return errChoice
}

// digest sets the digest of a command with payload.
func (p *payload) digest(cmd *wire.Command, o *op, m *payloadMapping) {
	cmd.Flags |= wire.FlagDataDigest
	if cmd.Opcode != wire.OpWrite {
		return
	}
	data := m.buffer.Data
	if !m.copied() {
		data = p.dataOf(o.request)[o.cut:]
	}
	cmd.DataCRC = wire.DataCRC(data[:cmd.Length])
}

// dataOf returns the payload of a request, in the caller's memory or reserved.
func (p *payload) dataOf(r *block.Request) []byte {
	if r.Memory&reservedPool != 0 {
		return p.reserved[r.Memory&reservedIndex].Data
	}
	return r.Data
}

// intact reports whether the data of a Read, or the extents, fit their digest.
// Data that passes through a buffer is compared behind the copy.
func (q *Queue) intact(reply *wire.Reply, rc *carrier.Receive, sl *slot) bool {
	o := &q.requests.ops[sl.op]
	if sl.mode == wire.ModeInline {
		return wire.DataCRC(rc.Data[:reply.InlineLength]) == reply.DataCRC
	}
	q.payload.finish(o, sl, true)
	return wire.DataCRC(q.payload.dataOf(o.request)[sl.off:][:sl.length]) == reply.DataCRC
}

// corrupt ends a command whose payload does not fit its digest: with the
// connection, or with EIO.
func (q *Queue) corrupt(rc *carrier.Receive, sl *slot, at uint16) error {
	o, d := &q.requests.ops[sl.op], q.device
	o.corrupt++
	again := o.corrupt < mostCorrupt && !q.reconnect.over && !q.poster.leaving
	q.carrier.CountDigestError()
	d.corrupt.Warn(d.cfg.Log, "the payload of a request has changed on the way", "event", "payload_corrupt",
		"host", q.path.host, "export", d.export.Name, "op", o.request.Op, "offset", o.request.Offset+sl.off, "length", sl.length, "resent", again)
	if again {
		return errCorrupt
	}
	return q.finishReply(rc, sl, at, syscall.EIO)
}
