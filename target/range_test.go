package target_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestTransfersWaitForTheirRange: RDMA from and to a disk in memory does not
// bypass the holder of the range, and delays no other request.
func TestTransfersWaitForTheirRange(t *testing.T) {
	const at, n = 1 << 20, 128 << 10
	e := disk(t, "a")
	ranges, content := e.Device.(block.Mapped).Ranges(), e.Device.(block.Mapped).Memory()
	r := newRig(t, target.Config{}, e)
	s := r.attach(t, "a")
	memory, err := s.io.expose(n, readWrite)
	must(t, err)
	for i, row := range []struct {
		name  string
		op    wire.Opcode
		off   uint64
		write bool // how the range is held meanwhile
		waits bool
	}{
		{"read under a writer", wire.OpRead, at, true, true},
		{"read beside a reader", wire.OpRead, at, false, false},
		{"write under a reader", wire.OpWrite, at, false, true},
		{"write under a writer", wire.OpWrite, at, true, true},
		{"odd write under a reader", wire.OpWrite, at + 8, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			for j := range memory.Bytes() {
				memory.Bytes()[j] = byte(i)
			}
			before := bytes.Clone(content[row.off:][:n])
			if !ranges.TryAcquire(at+64<<10, block.AtomicUnit, row.write) {
				t.Fatal("the range is held by an answered request")
			}
			cmd := transfer(row.op, row.off, memory.segment(0, n))
			cmd.Export = s.export.Export
			must(t, s.io.command(cmd, nil))
			if row.waits {
				other := inlineRead(0, 512) // sent later, with a free range
				other.Export, other.Slot = s.export.Export, 1
				must(t, s.io.command(other, nil))
				_, data, err := s.io.status()
				must(t, err)
				if len(data) != 512 {
					t.Error("a request was answered while its range was held")
				}
				if !bytes.Equal(content[row.off:][:n], before) {
					t.Error("the disk changed while the range was held")
				}
				waitFor(t, "the request in flight", func() bool { return r.server.Status().Exports[0].InFlight == 1 })
			}
			if !row.waits {
				st, _, err := s.io.status()
				must(t, err)
				if st != wire.StatusOK {
					t.Error(st)
				}
			}
			ranges.Release(at+64<<10, block.AtomicUnit, row.write)
			if row.waits {
				st, _, err := s.io.status()
				must(t, err)
				if st != wire.StatusOK {
					t.Error(st)
				}
			}
			if !bytes.Equal(content[row.off:][:n], memory.Bytes()) {
				t.Error("other data moved")
			}
		})
	}
	// An odd write never bypasses the queue, so its range is never busy.
	waitFor(t, "the counters of ranges", func() bool {
		s := r.server.Status()
		x := &s.Exports[0]
		return s.Stats.RangesTaken == 3 && x.Stats.Waits == 3 && x.InFlight == 0
	})
}

// TestPeersThatDieLeaveNoRange, and no block of which only a part is written,
// wherever they were when they went.
func TestPeersThatDieLeaveNoRange(t *testing.T) {
	const n, commands = 900 << 10, 8 // so that steps of the provider end anywhere in them
	e := disk(t, "a")
	ranges, content := e.Device.(block.Mapped).Ranges(), e.Device.(block.Mapped).Memory()
	r := newRig(t, target.Config{}, e)
	start := r.state()
	for round := range uint64(60) {
		s := r.attach(t, "a")
		memory, err := s.io.expose(n, readWrite)
		must(t, err)
		for i := 0; i < n; i += 8 {
			binary.LittleEndian.PutUint64(memory.Bytes()[i:], round+1)
		}
		for slot := range uint16(commands) {
			// In segments that do not end on blocks, in some that do, and in
			// one.
			first := []int{n / 2, n/2 + 520, n - 4096}[slot%3]
			cmd := transfer(wire.OpWrite, uint64(slot)<<20, memory.segment(0, first), memory.segment(first, n-first))
			if slot%4 == 3 {
				cmd = transfer(wire.OpRead, uint64(slot-1)<<20, memory.segment(0, 4096))
			}
			cmd.Export, cmd.Slot = s.export.Export, slot
			must(t, s.io.command(cmd, nil))
		}
		for range round % 6 {
			_, _, err := s.io.status()
			must(t, err)
		}
		must(t, s.close())
		r.reaches(start)
		if !ranges.TryAcquire(0, int64(len(content)), true) {
			t.Fatalf("round %d: a range is held without a holder", round)
		}
		for off := 0; off < len(content); off += block.AtomicUnit {
			b := content[off:][:block.AtomicUnit]
			if !bytes.Equal(b[8:], b[:len(b)-8]) {
				t.Fatalf("round %d: the block at %d is torn: %d … %d", round, off,
					binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-8:]))
			}
		}
		ranges.Release(0, int64(len(content)), true)
	}
}
