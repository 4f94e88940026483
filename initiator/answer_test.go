package initiator_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// asks are requests: one for each way that payload moves.
var asks = map[string]struct {
	op block.Op
	n  int64
}{
	"small read": {block.Read, 512}, "large read": {block.Read, 64 << 10}, "small write": {block.Write, 512},
	"large write": {block.Write, 64 << 10}, "flush": {block.Flush, 0}, "trim": {block.Trim, 4096},
	"status": {block.Status, 4096}, "prefetch": {block.Prefetch, 4096},
}

// TestFaultyAnswers: whatever a target answers, the request ends, with EIO if
// the answer breaks a rule, and so do the others of the connection and all
// later ones; the device closes in order.
func TestFaultyAnswers(t *testing.T) {
	type answer func(e *end, cmd *wire.Command) bool
	imm := func(typ wire.ImmediateType, change func(*wire.Command)) answer {
		return func(e *end, cmd *wire.Command) bool {
			c := *cmd
			if change != nil {
				change(&c)
			}
			e.immediate(immediateOf(typ, &c))
			return true
		}
	}
	reply := func(change func(*wire.Reply) int) answer {
		return func(e *end, cmd *wire.Command) bool {
			r := replyOf(cmd)
			n := change(&r)
			e.reply(r, n)
			return true
		}
	}
	bytes := func(b ...byte) answer {
		return func(e *end, cmd *wire.Command) bool { e.send(b); return true }
	}
	inline := func(n uint32) answer {
		return reply(func(r *wire.Reply) int { r.Length, r.InlineLength = n, n; return int(n) })
	}
	extents := func(list ...wire.Extent) answer {
		return func(e *end, cmd *wire.Command) bool {
			r := replyOf(cmd)
			n := uint32(len(list) * wire.ExtentSize)
			r.Length, r.InlineLength = n, n
			b := make([]byte, wire.HeaderSize+n)
			r.Encode(b)
			for i, x := range list {
				x.Encode(b[wire.HeaderSize+i*wire.ExtentSize:])
			}
			e.send(b)
			return true
		}
	}
	good := func(r *wire.Reply) int { return int(r.InlineLength) }
	any := []string{"small read", "large read", "small write", "large write", "flush", "trim", "status", "prefetch"}
	cases := map[string]struct {
		answer answer
		asks   []string
		text   string // of the queue's error
	}{
		"free slot":       {reply(func(r *wire.Reply) int { r.Slot += 2; return good(r) }), any, "no command"},
		"foreign slot":    {reply(func(r *wire.Reply) int { r.Slot += 4; return good(r) }), any, "no command"},
		"low slot":        {reply(func(r *wire.Reply) int { r.Slot--; return good(r) }), any, "no command"},
		"stale sequence":  {reply(func(r *wire.Reply) int { r.Seq--; return good(r) }), any, "another command"},
		"stale epoch":     {reply(func(r *wire.Reply) int { r.PathEpoch--; return good(r) }), any, "another command"},
		"credits":         {reply(func(r *wire.Reply) int { r.CreditDelta = -1; return good(r) }), any, "credits"},
		"longer":          {reply(func(r *wire.Reply) int { r.Length++; r.InlineLength = 0; return 0 }), any, "not fit"},
		"no length":       {reply(func(r *wire.Reply) int { r.Length, r.InlineLength = 0, 0; return 0 }), []string{"small read", "large read", "small write", "large write"}, "not fit"},
		"data unasked":    {inline(512), []string{"large read", "large write", "flush", "trim", "small write"}, "not fit"},
		"data short":      {inline(511), []string{"small read"}, "not fit"},
		"data long":       {inline(513), []string{"small read"}, "not fit"},
		"data missing":    {reply(func(r *wire.Reply) int { return int(r.InlineLength) - 1 }), []string{"small read"}, "length"},
		"data too long":   {inline(8192), []string{"small read"}, "length error"},
		"digest unasked":  {reply(func(r *wire.Reply) int { r.Flags, r.DataCRC = wire.ReplyDataDigest, 7; return good(r) }), any, "not fit"},
		"free slot, four": {imm(wire.ImmOK, func(c *wire.Command) { c.Slot += 2 }), any, "no command"},
		"stale sequence, four": {
			imm(wire.ImmOK, func(c *wire.Command) { c.Seq-- }),
			[]string{"small write", "large write", "flush", "trim"},
			"another command",
		},
		"stale epoch, four": {imm(wire.ImmOK, func(c *wire.Command) { c.PathEpoch = 2 }), []string{"small write", "flush"}, "another command"},
		"no data":           {imm(wire.ImmOK, nil), []string{"small read", "large read"}, "not fit"},
		"data not placed":   {imm(wire.ImmOKData, nil), any, "not fit"},
		"credit grant":      {imm(wire.ImmCredit, nil), any, "type 4"},
		"type of tomorrow":  {imm(15, nil), any, "type 15"},
		"placed unasked": {func(e *end, cmd *wire.Command) bool {
			cmd.Segments[0].Length = 0
			e.place(cmd, cmd.Length, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large write"}, "not fit"},
		"placed too much": {func(e *end, cmd *wire.Command) bool {
			e.place(cmd, cmd.Length+1, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large read"}, "not fit"},
		"placed one byte": {func(e *end, cmd *wire.Command) bool {
			e.place(cmd, 1, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large read"}, "not fit"},
		"placed all but one": {func(e *end, cmd *wire.Command) bool {
			e.place(cmd, cmd.Length-1, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large read"}, "not fit"},
		"placed nothing": {func(e *end, cmd *wire.Command) bool {
			e.place(cmd, 0, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large read"}, "not fit"},
		"not placed, reply": {reply(good), []string{"large read"}, "not fit"},
		"placed elsewhere": {func(e *end, cmd *wire.Command) bool {
			cmd.Segments[0].Handle ^= 1 << 16
			e.place(cmd, cmd.Length, immediateOf(wire.ImmOKData, cmd))
			return true
		}, []string{"large read"}, "closed the connection|protection error"},
		"twice": {func(e *end, cmd *wire.Command) bool {
			r := replyOf(cmd)
			r.Status, r.Length, r.InlineLength = wire.StatusNoSpace, 0, 0
			e.reply(r, 0)
			e.reply(r, 0)
			return true
		}, any, ""}, // the first is the answer, whatever comes then
		"wrong checksum": {func(e *end, cmd *wire.Command) bool {
			b := make([]byte, wire.HeaderSize)
			r := replyOf(cmd)
			r.Encode(b)
			b[60]++
			e.send(b)
			return true
		}, any, "checksum"},
		"one byte": {bytes(byte(wire.OpReply)), any, "1 bytes"},
		"zeroes":   {bytes(make([]byte, 64)...), any, "unexpected"},
		"control message": {func(e *end, cmd *wire.Command) bool {
			e.sendControl(&wire.CloseResponse{ID: 1, PathEpoch: 1})
			return true
		}, any, "unexpected close-response"},
		"no extents":      {extents(), []string{"status"}, "extents do not fit"},
		"empty extent":    {extents(wire.Extent{Length: 512}, wire.Extent{}), []string{"status"}, "extents do not fit"},
		"extent beyond":   {extents(wire.Extent{Length: 4097}), []string{"status"}, "extents do not fit"},
		"half an extent":  {inline(12), []string{"status"}, "extents do not fit"},
		"extents unasked": {extents(wire.Extent{Length: 4096}), []string{"trim", "prefetch"}, "not fit"},
		"only success":    {imm(wire.ImmOK, nil), []string{"status"}, "not fit"},
		"the end":         {func(e *end, cmd *wire.Command) bool { return false }, any, "closed the connection"},
	}
	for name, c := range cases {
		for _, kind := range c.asks {
			t.Run(name+"/"+kind, func(t *testing.T) {
				s := newStage(t, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
					if cmd.Offset == 1<<20 {
						return true // the bystander is not answered
					}
					return c.answer(e, cmd)
				}})
				q := open(t, s.dial(t), 4)
				a := asks[kind]
				if c.text == "" {
					submit(t, q, request(a.op, 0, a.n))
					wantAll(t, q, 1, syscall.ENOSPC)
					return
				}
				submit(t, q, request(a.op, 0, a.n), request(block.Read, 1<<20, 512))
				wantAll(t, q, 2, syscall.EIO)
				if err := q.Err(); err == nil || !containsOne(err.Error(), c.text) {
					t.Errorf("the queue says %v, want %q", err, c.text)
				}
				submit(t, q, request(block.Read, 0, 512), request(block.Write, 0, 64<<10))
				wantAll(t, q, 2, syscall.EIO)
				wantQuiet(t, q)
			})
		}
	}
}

// TestLastWriteOfRead: a Read of several segments ends with the RDMA Write of
// the last one, and that has the length of that segment.
func TestLastWriteOfRead(t *testing.T) {
	const first, last = 768 << 10, 256 << 10
	for name, c := range map[string]struct {
		length uint32
		want   syscall.Errno
	}{
		"the last segment":         {last, 0},
		"a byte less":              {last - 1, syscall.EIO},
		"a byte more":              {last + 1, syscall.EIO},
		"as long as the first one": {first, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
				if cmd.NumSegments != 2 || cmd.Segments[0].Length != first || cmd.Segments[1].Length != last {
					t.Errorf("%d segments of %v", cmd.NumSegments, cmd.Segments)
					return false
				}
				if w := e.c.AcquireSend(); w != nil {
					to := cmd.Segments[0]
					_ = e.c.StageWrite(w, carrier.Span{Addr: e.data.Addr, Handle: e.data.Handle, Length: first}, to.Addr, to.Handle)
				}
				cmd.Segments[0] = cmd.Segments[1]
				e.place(cmd, c.length, immediateOf(wire.ImmOKData, cmd))
				return true
			}})
			cfg := s.config()
			cfg.CopyMode = regcache.CopyZero
			d, err := initiator.Dial(context.Background(), cfg)
			must(t, err)
			t.Cleanup(func() { must(t, d.Close()) })
			buf, err := d.Alloc(2 << 20)
			must(t, err)
			q := open(t, d, 4)
			r := &block.Request{Op: block.Read, Length: first + last, Data: buf[1<<20-first:][:first+last]}
			submit(t, q, r)
			wantAll(t, q, 1, c.want)
			must(t, d.Free(buf))
		})
	}
}

// containsOne reports whether a text contains one of the alternatives.
func containsOne(text, alternatives string) bool {
	return slices.ContainsFunc(strings.Split(alternatives, "|"), func(a string) bool { return strings.Contains(text, a) })
}

// wantQuiet checks that a lost queue with nothing in flight lets its owner
// sleep.
func wantQuiet(t testing.TB, q block.Queue) {
	t.Helper()
	if d, ok := q.Arm(); !ok || d >= 0 {
		t.Errorf("a lost queue does not let its owner sleep: %v, %v", d, ok)
	}
	if q.FD() < 0 {
		t.Error("a lost queue has no file descriptor")
	}
	r := &block.Request{Op: block.Write, Length: 64 << 10}
	if !q.Reserve(r) || len(r.Data) != 64<<10 {
		t.Fatal("a lost queue has no memory")
	}
	submit(t, q, r)
	wantAll(t, q, 1, syscall.EIO)
	q.Release(r)
	small := &block.Request{Op: block.Read, Length: 512}
	if !q.Reserve(small) {
		t.Fatal("a lost queue reserves nothing")
	}
	q.Release(small) // without Submit
}

// TestErrorsOfTheTarget come back as errnos, and the connection goes on.
func TestErrorsOfTheTarget(t *testing.T) {
	want := map[int64]wire.Status{
		0: wire.StatusPermission, 1: wire.StatusIO, 2: wire.StatusNoMemory, 3: wire.StatusInvalid, 4: wire.StatusNoSpace,
		5: wire.StatusOverflow, 6: wire.StatusNotSupported, 7: wire.StatusShutdown, 8: wire.StatusRetry, 9: wire.StatusDigest,
	}
	s := newStage(t, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
		r := wire.Reply{Slot: cmd.Slot, Seq: cmd.Seq, PathEpoch: 1, Status: want[int64(cmd.Offset/512)]}
		if r.Status == wire.StatusRetry {
			r.Flags, r.RetryAfter = wire.ReplyRetry, 10
		}
		e.reply(r, 0)
		return true
	}})
	q := open(t, s.dial(t), 4)
	for block, status := range want {
		for _, a := range asks {
			if a.n == 0 {
				continue
			}
			submit(t, q, request(a.op, block*512, a.n))
			wantAll(t, q, 1, status.Errno())
		}
	}
	if err := q.Err(); err != nil {
		t.Error(err)
	}
}

// A flush that the target fails is in the log, because what is above may forget
// it; other errors of requests are not.
func TestFailedFlushIsLogged(t *testing.T) {
	s := newStage(t, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
		r := replyOf(cmd)
		r.Status, r.Length, r.InlineLength = wire.StatusIO, 0, 0
		e.reply(r, 0)
		return true
	}})
	var log book
	cfg := s.config()
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	d, err := initiator.Dial(context.Background(), cfg)
	must(t, err)
	q, err := d.NewQueue(4)
	must(t, err)
	submit(t, q, request(block.Read, 0, 512), request(block.Trim, 0, 4096))
	wantAll(t, q, 2, syscall.EIO)
	if text := log.String(); text != "" {
		t.Errorf("failed requests are in the log:\n%s", text)
	}
	for range 3 {
		submit(t, q, request(block.Flush, 0, 0))
		wantAll(t, q, 1, syscall.EIO)
	}
	text := log.String()
	if !strings.Contains(text, "level=WARN msg=\"the target fails to flush") || !strings.Contains(text, "export=disk error=\"input/output error\"") {
		t.Errorf("failed flushes are logged as:\n%s", text)
	}
	must(t, q.Close())
	must(t, d.Close())
}
