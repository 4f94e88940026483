package initiator_test

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// FuzzAnswers has a target answer requests by whatever bytes, and then end the
// connection. Every request ends, well or with EIO, and data comes from nowhere
// but the answer.
//
// The input is a list of answers: a byte for how (1 good checksum, 2 immediate,
// 4 RDMA Write with immediate, 8 the fields of the command are put in), two
// bytes of length, and the bytes.
func FuzzAnswers(f *testing.F) {
	for _, r := range []wire.Reply{
		{Length: 512, InlineLength: 512}, {Status: wire.StatusIO}, {Length: 65536}, {}, {Status: wire.StatusRetry, Flags: wire.ReplyRetry},
	} {
		b := make([]byte, wire.HeaderSize+int(r.InlineLength))
		r.PathEpoch, r.Seq, r.Slot = 1, 1, 128
		r.Encode(b)
		for how := range byte(16) {
			f.Add(append([]byte{how, byte(len(b)), byte(len(b) >> 8)}, b...))
		}
	}
	for t := range byte(6) {
		f.Add([]byte{2, 4, 0, 128, 0, 1, t<<4 | 1, 4, 4, 0, 129, 0, 1, t<<4 | 1})
	}
	var input atomic.Pointer[[]byte]
	s := newStage(f, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
		if cmd.Offset != 0 {
			return true // the first is answered for all
		}
		for b := *input.Load(); len(b) >= 3; {
			how, n := b[0], min(int(b[1])|int(b[2])<<8, len(b)-3)
			e.fuzz(how, append([]byte(nil), b[3:3+n]...), cmd)
			b = b[3+n:]
		}
		return false
	}})
	d := s.dial(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 8192 {
			return
		}
		input.Store(&b)
		q, err := d.NewQueue(5)
		must(t, err)
		small, large := request(block.Read, 512, 512), request(block.Read, 1<<20, 64<<10)
		write, held := request(block.Write, 1<<20, 64<<10), &block.Request{Op: block.Read, Length: 512}
		status := request(block.Status, 2<<20, 4096)
		q.Reserve(held)
		submit(t, q, small, large, write, held, status)
		rs, err := reap(q, 5)
		must(t, err)
		for _, r := range rs {
			if covered := r.Covered(); r.Op == block.Status && (covered > r.Length || (covered > 0) != (r.Err == nil)) {
				t.Errorf("status of %d bytes covers %d, %v", r.Length, covered, r.Err)
			}
			if r.Err == nil && r.Op == block.Read && int64(len(r.Data)) != r.Length {
				t.Errorf("read of %d bytes has data of %d", r.Length, len(r.Data))
			}
		}
		q.Release(held)
		again := request(block.Flush, 0, 0)
		submit(t, q, again)
		wantAll(t, q, 1, syscall.EIO)
		must(t, q.Close())
	})
}

// fuzz sends one answer.
func (e *end) fuzz(how byte, b []byte, cmd *wire.Command) {
	switch {
	case how&2 != 0:
		e.immediate(wire.Immediate(binary.LittleEndian.Uint32(append(b, 0, 0, 0, 0))))
	case how&4 != 0:
		cmd.Segments[0] = wire.Segment{Addr: 4096, Handle: 1}
		e.place(cmd, uint32(len(b)), wire.Immediate(binary.LittleEndian.Uint32(append(b, 0, 0, 0, 0))))
	default:
		if how&8 != 0 && len(b) >= 16 {
			binary.LittleEndian.PutUint16(b[4:], cmd.Slot)
			binary.LittleEndian.PutUint32(b[8:], cmd.Seq)
			binary.LittleEndian.PutUint32(b[12:], cmd.PathEpoch)
		}
		if how&1 != 0 && len(b) >= 64 {
			binary.LittleEndian.PutUint16(b[58:], 64)
			binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli)))
		}
		e.send(b)
	}
}
