package target_test

import (
	"bytes"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// panickyDisk is a disk of which one method panics, when it is told to.
type panickyDisk struct {
	block.Device
	method atomic.Pointer[string]
}

func (d *panickyDisk) arm(method string) { d.method.Store(&method) }

func (d *panickyDisk) visit(method string) {
	if m := d.method.Load(); m != nil && *m == method {
		panic("planted in " + method)
	}
}

func (d *panickyDisk) Info() block.Info {
	d.visit("Info")
	return d.Device.Info()
}

func (d *panickyDisk) Identity() block.Identity { return block.IdentityOf(d.Device) }

func (d *panickyDisk) NewQueue(depth int) (block.Queue, error) {
	d.visit("NewQueue")
	q, err := d.Device.NewQueue(depth)
	return &panickyQueue{Queue: q, disk: d}, err
}

type panickyQueue struct {
	block.Queue
	disk *panickyDisk
}

func (q *panickyQueue) Submit(r *block.Request) bool {
	q.disk.visit("Submit")
	ok := q.Queue.Submit(r)
	q.disk.visit("Submit, done")
	return ok
}

func (q *panickyQueue) Kick() {
	q.disk.visit("Kick")
	q.Queue.Kick()
	q.disk.visit("Kick, done")
}

func (q *panickyQueue) Reap(dst []*block.Request) int {
	n := q.Queue.Reap(dst)
	if n > 0 {
		q.disk.visit("Reap")
	}
	return n
}

func (q *panickyQueue) Close() error {
	q.disk.visit("Close")
	return q.Queue.Close()
}

// descriptors counts the file descriptors of the process.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// A panic of the backend costs the connection that called it. Others go on,
// nothing of the connection is left, and the writer's place is free again.
func TestPanicInBackend(t *testing.T) {
	for _, method := range []string{"NewQueue", "Submit", "Submit, done", "Kick", "Kick, done", "Reap"} {
		t.Run(method, func(t *testing.T) {
			bad := &panickyDisk{Device: fileDisk(t, "bad").Device}
			r := newRig(t, target.Config{}, disk(t, "good"), target.Export{Name: "bad", Device: bad})
			good := r.healthy(t, "good")
			base := r.state()
			warm := r.attach(t, "bad")
			must(t, warm.writeInline(0, make([]byte, 512)))
			must(t, warm.close())
			r.reaches(base)
			open := 0
			waitFor(t, "descriptors to stay the same", func() bool {
				was := open
				open = descriptors(t)
				return open == was
			})
			for range 2 {
				s := r.attach(t, "bad")
				bad.arm(method)
				data := bytes.Repeat([]byte{7}, 4096)
				for slot := range uint16(4) {
					cmd := inlineWrite(uint64(slot)*4096, data)
					cmd.Slot = slot
					must(t, s.io.command(cmd, data))
				}
				if _, err := s.io.ends(); err != nil {
					t.Fatal(err)
				}
				bad.arm("")
				again := r.join(t, s, 2) // the session goes on
				s.io, again = again, s.io
				must(t, s.writeInline(0, data))
				must(t, again.close())
				must(t, s.close())
				r.reaches(base)
				next := r.attach(t, "bad") // the place of the writer
				must(t, next.writeInline(0, data))
				must(t, next.close())
				r.reaches(base)
			}
			waitFor(t, "the descriptors to be as before", func() bool { return descriptors(t) <= open })
			st := r.server.Status()
			if st.Panics != 2 || st.Quarantined != 0 {
				t.Errorf("%d panics, %d quarantined", st.Panics, st.Quarantined)
			}
			if text := r.log.String(); !strings.Contains(text, "planted in "+method) || !strings.Contains(text, "panickyQueue") && !strings.Contains(text, "panickyDisk") {
				t.Errorf("no panic with its stack in %s", text)
			}
			good.progresses()
		})
	}
}

// A panic while the disk tells of itself costs the session that opens it, and
// no place of a writer.
func TestPanicInOpen(t *testing.T) {
	bad := &panickyDisk{Device: fileDisk(t, "bad").Device}
	r := newRig(t, target.Config{}, target.Export{Name: "bad", Device: bad})
	p := r.peer(t)
	must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	bad.arm("Info")
	b := make([]byte, wire.MaxControlSize)
	n, err := (&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadWrite, Name: "bad"}).Encode(b)
	must(t, err)
	must(t, p.send(b[:n]))
	_, err = p.ends()
	must(t, err)
	bad.arm("")
	r.reaches(state{opens: "bad0 "})
	s := r.attach(t, "bad")
	must(t, s.writeInline(0, make([]byte, 512)))
	must(t, s.close())
	r.reaches(state{opens: "bad0 "})
}

// A backend that panics when its queue is closed may still write. The memory
// that it may access is kept, and so is the place of the writer.
func TestPanicInClose(t *testing.T) {
	bad := &panickyDisk{Device: fileDisk(t, "bad").Device}
	r := newRig(t, target.Config{}, disk(t, "good"), target.Export{Name: "bad", Device: bad})
	r.quarantines = true
	good := r.healthy(t, "good")
	s := r.attach(t, "bad")
	must(t, s.writeInline(0, make([]byte, 512)))
	bad.arm("Close")
	must(t, s.io.close())
	_, err := s.control.ends()
	must(t, err)
	waitFor(t, "the quarantine", func() bool { st := r.server.Status(); return st.Quarantined == 1 && st.Connections == 2 })
	p := r.peer(t)
	must(t, p.login(p.loginRequest(wire.RoleControl, newID(), 0)))
	var a wire.OpenResponse
	q := wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadWrite, Name: "bad"}
	must(t, p.ask(&q, &a))
	if a.Status != wire.StatusBusy {
		t.Errorf("another writer of a quarantined export: %v %s", a.Status, a.Reason)
	}
	good.progresses()
	if text := r.log.String(); !strings.Contains(text, "connection in quarantine") {
		t.Error(text)
	}
}

// panickyMemory is a panickyDisk that is memory: payload moves straight from
// and to it, with the range held.
type panickyMemory struct {
	*panickyDisk
	mapped block.Mapped
}

func (d panickyMemory) Memory() []byte        { return d.mapped.Memory() }
func (d panickyMemory) Ranges() *block.Ranges { return d.mapped.Ranges() }

func (d panickyMemory) Access(off, length int64, write bool) bool {
	return d.mapped.Access(off, length, write)
}

// A connection that panics while a peer moves data from and to the disk gives
// back the ranges that it holds for that.
func TestPanicWhileRangesAreHeld(t *testing.T) {
	memory := disk(t, "bad").Device
	bad := panickyMemory{&panickyDisk{Device: memory}, memory.(block.Mapped)}
	r := newRig(t, target.Config{}, target.Export{Name: "bad", Device: bad})
	for range 20 {
		s := r.attach(t, "bad")
		m, err := s.io.expose(1<<20, readWrite)
		must(t, err)
		bad.arm("Submit")
		for slot := range uint16(8) {
			op := wire.OpWrite
			if slot%2 == 1 {
				op = wire.OpRead
			}
			cmd := transfer(op, uint64(slot)<<17, m.segment(int(slot)<<17, 1<<17))
			cmd.Slot = slot
			must(t, s.io.command(cmd, nil))
		}
		must(t, s.io.command(wire.Command{Opcode: wire.OpFlush, Slot: 8}, nil))
		_, err = s.io.ends()
		must(t, err)
		bad.arm("")
		must(t, s.close())
		r.reaches(state{opens: "bad0 "})
		if !bad.Ranges().TryAcquire(0, 16<<20, true) {
			t.Fatal("a range is still held")
		}
		bad.Ranges().Release(0, 16<<20, true)
	}
}
