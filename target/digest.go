package target

import (
	"log/slog"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// With data digests, a CRC32C of the payload travels in the header of each
// command or reply, which has a checksum of its own. The target computes and
// compares it in memory that no peer reaches, and that is no disk: the receive
// of an inline Write, the pool for other payload. So what it has checked is
// what the disk gets, and another writer of the disk changes nothing between
// the digest of a Read and its data.

const digestRequired = "it demands data digests: attach with --data-digest"

// lacksDigest reports whether a login is refused because it offers no digest.
// The seal of a sealed session protects more, and discovery has no payload.
func (w *worker) lacksDigest(q *wire.LoginRequest) bool {
	return w.conn.server.cfg.RequireDigest && !w.carrier.Sealed() && q.Role != wire.RoleDiscover && w.digest(q) == wire.DigestNone
}

// digest chooses the digest of a login.
func (w *worker) digest(q *wire.LoginRequest) wire.Digest {
	if w.carrier.Sealed() {
		return wire.DigestNone
	}
	return q.Digest & wire.DigestCRC32C
}

// write gives a Write whose payload is in private memory to the backend, unless
// its digest refuses it.
func (x *executor) write(r *request) error {
	if r.command.Flags&wire.FlagDataDigest == 0 || wire.DataCRC(r.block.Data) == r.command.DataCRC {
		return x.submit(r)
	}
	x.carrier.CountDigestError()
	x.conn.logCaused(x.log, slog.LevelWarn, "write refused: its payload has changed on the way", "event", "payload_corrupt",
		"export", r.handle.queue.export.Name, "op", block.Write, "offset", r.command.Offset, "length", r.command.Length)
	x.refuse(r, wire.StatusDigest)
	return nil
}

// digest puts the digest of the data of a reply into its header, if the command
// asks for it.
func (r *request) digest(reply *wire.Reply) {
	if r.command.Flags&wire.FlagDataDigest == 0 || r.command.Opcode == wire.OpWrite || reply.Status != wire.StatusOK {
		return
	}
	reply.Flags |= wire.ReplyDataDigest
	reply.DataCRC = wire.DataCRC(r.memory.Data[:reply.Length])
}
