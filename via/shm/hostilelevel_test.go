package shm

import (
	"bytes"
	"slices"
	"testing"

	"github.com/viablk/viablk/via"
)

// TestHostileRecordAtLevels sends records that are wrong at some levels. At the
// others the connection survives.
func TestHostileRecordAtLevels(t *testing.T) {
	const first, last, imm = flagFirst, flagLast, flagImmediate
	beginning := record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 16}
	ending := record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 16}
	write := func(code via.AsyncCode) record { return refusal(code) }
	with := func(r record, change func(r *record)) record { change(&r); return r }
	status := func(s via.Status) record {
		return with(refusal(via.AsyncConnectionLost), func(r *record) { r.total = uint32(s) })
	}
	for name, row := range map[string]struct {
		records []record
		keeps   []via.ReliabilityLevel
	}{
		"no record":                       {nil, allLevels},
		"a message":                       {[]record{msg(64)}, allLevels[:1]}, // no receive
		"rest of a message without room":  {[]record{beginning, ending}, allLevels[:1]},
		"first in a skipped message":      {[]record{beginning, beginning}, nil},
		"a middle without a first":        {[]record{ending}, nil},
		"written in a skipped message":    {[]record{beginning, {tag: tag{kind: recordWritten, flags: imm}}}, nil},
		"a notice in a skipped message":   {[]record{beginning, write(via.AsyncRdmaWriteProt)}, nil},
		"a skipped message is cut off":    {[]record{beginning, {tag: tag{kind: recordAborted}}}, allLevels[:1]},
		"cut off outside a message":       {[]record{{tag: tag{kind: recordAborted}}}, nil},
		"cut off twice":                   {[]record{beginning, {tag: tag{kind: recordAborted}}, {tag: tag{kind: recordAborted}}}, nil},
		"cut off with payload":            {[]record{beginning, {tag: tag{kind: recordAborted}, length: 8}}, nil},
		"cut off with a flag":             {[]record{beginning, {tag: tag{kind: recordAborted, flags: last}}}, nil},
		"cut off with a total":            {[]record{beginning, {tag: tag{kind: recordAborted}, total: 16}}, nil},
		"lost":                            {[]record{{tag: tag{kind: recordLost}}}, allLevels[:1]},
		"lost in a message":               {[]record{beginning, {tag: tag{kind: recordLost}}}, nil},
		"lost with a flag":                {[]record{{tag: tag{kind: recordLost, flags: first}}}, nil},
		"lost with immediate data":        {[]record{{tag: tag{kind: recordLost}, immediate: 1}}, nil},
		"notice of a refused write":       {[]record{write(via.AsyncRdmaWriteProt)}, allLevels[:1]},
		"notice of a corrupt write":       {[]record{write(via.AsyncRdmaWriteData)}, allLevels[:1]},
		"notice of a write cut off":       {[]record{write(via.AsyncRdmaWriteAbort)}, allLevels[:1]},
		"notice of a read":                {[]record{write(via.AsyncRdmaReadProt)}, nil},
		"notice of the end":               {[]record{write(via.AsyncConnectionLost)}, nil},
		"notice that no peer sends":       {[]record{write(via.AsyncRecvQueueEmpty)}, nil},
		"notice that fails a device":      {[]record{write(via.AsyncCatastrophic)}, nil},
		"notice of no code":               {[]record{{tag: tag{kind: recordFailed}, immediate: 99}}, nil},
		"notice with a checksum":          {[]record{with(write(via.AsyncRdmaWriteProt), func(r *record) { r.flags = flagSum })}, allLevels[:1]}, // which is wrong
		"status for nothing":              {[]record{status(via.StatusRemoteDescError)}, nil},
		"status that no peer gives":       {[]record{status(via.StatusFlushed)}, nil},
		"status beside a refused write":   {[]record{with(write(via.AsyncRdmaWriteProt), func(r *record) { r.total = uint32(remote) })}, nil},
		"sequence number of the past":     {[]record{with(msg(64), func(r *record) { r.seq = ^uint16(0) })}, allLevels},
		"sequence number long past":       {[]record{with(msg(64), func(r *record) { r.seq = 1 << 15 })}, allLevels},
		"sequence number of the future":   {[]record{with(msg(64), func(r *record) { r.seq = 7 })}, allLevels[:1]},
		"a middle of the future":          {[]record{with(ending, func(r *record) { r.seq = 7 })}, allLevels[:1]},
		"unknown kind, past":              {[]record{with(record{tag: tag{kind: 77}}, func(r *record) { r.seq = ^uint16(0) })}, allLevels},
		"checksum that is wrong":          {[]record{with(msg(64), func(r *record) { r.flags |= flagSum })}, allLevels[:1]},
		"checksum longer than the record": {[]record{with(msg(16), func(r *record) { r.flags |= flagSum })}, nil},
	} {
		for _, level := range allLevels {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				b := attackAt(t, testTimeouts, level)
				for _, r := range row.records {
					if r.seq != 0 {
						b.peer.out.seq = uint64(r.seq)
					}
					b.peer.record(r, make([]byte, min(r.length, 64)))
					if r.flags&flagSum != 0 && r.length != 16 {
						b.peer.out.tail += recordAlign // where the checksum belongs
					}
				}
				b.peer.publish()
				if !slices.Contains(row.keeps, level) {
					b.loses()
					return
				}
				until(t, "the records", func() bool { return b.position().head == b.peer.out.tail }, b.station)
				b.peer.out.seq = uint64(b.position().seq)
				b.keeps()
			})
		}
	}
}

// position returns how far the victim has read the hostile peer's ring.
func (b *attacked) position() *reader {
	b.adapter.mu.Lock()
	defer b.adapter.mu.Unlock()
	for l := range b.adapter.links {
		if l.receiver.events.owner == b.vi {
			return &l.receiver.in
		}
	}
	return nil
}

// TestHostileGapInsideMessage leaves records out between the fragments of a
// message that is being received.
func TestHostileGapInsideMessage(t *testing.T) {
	for _, level := range allLevels {
		b := attackAt(t, testTimeouts, level)
		check(t, b.vi.PostRecv(b.descriptor(0, via.OpRecv, 1<<20, 64)))
		b.peer.record(record{length: 8, tag: tag{kind: recordMessage, flags: flagFirst}, total: 16}, make([]byte, 8))
		b.peer.out.seq++
		b.peer.record(record{length: 8, tag: tag{kind: recordMessage, flags: flagLast}, total: 16}, make([]byte, 8))
		b.peer.publish()
		b.loses()
	}
}

// TestHostileStatus refuses a Send with a status at reliable reception: that
// Send completes with it, and the acknowledged ones complete without error.
func TestHostileStatus(t *testing.T) {
	b := attackAt(t, testTimeouts, rr)
	var sends [3]*via.Descriptor
	for i := range sends {
		sends[i] = b.descriptor(i, via.OpSend, 1<<20, 64)
		check(t, b.vi.PostSend(sends[i]))
	}
	b.peer.word(offHead, recordHeader+64)
	r := refusal(via.AsyncConnectionLost)
	r.total = uint32(transport)
	b.peer.record(r, nil)
	b.peer.publish()
	b.loses()
	for i, want := range []via.Status{0, transport, flushed} {
		if c := b.await(sends[i]); c.Status&via.StatusErrorMask != want {
			t.Errorf("send %d says %v", i, c.Status)
		}
	}
}

// FuzzRecords lets a link read any sequence of records at each level: it
// completes its receives in order, each once and with no more bytes than fit,
// and writes to no other memory.
func FuzzRecords(f *testing.F) {
	mems := [2]*via.Memory{registerHeap(f), registerHeap(f)}
	const whole = flagFirst | flagLast
	f.Add([]byte{recordMessage, whole, 8, 8, 0, recordMessage, flagFirst, 8, 9, 0, recordMessage, flagLast, 1, 9, 0})
	f.Add([]byte{recordMessage, flagFirst, 40, 80, 0, recordAborted, 0, 0, 0, 0, recordLost, 0, 0, 0, 0})
	f.Add([]byte{recordWritten, flagImmediate, 0, 5, 0, recordFailed, flagImmediate, 0, 0, 0, recordFailed, 0, 0, 0, 0})
	f.Add([]byte{recordMessage, whole, 90, 90, 0, recordMessage, whole, 1, 1, 2, recordMessage, whole, 1, 1, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, level := range allLevels {
			readRecords(t, mems, level, in)
		}
	})
}

// readRecords reads records of five bytes: kind, flags, length, total, and the
// distance from the sequence number that would be right.
func readRecords(t *testing.T, mems [2]*via.Memory, level via.ReliabilityLevel, in []byte) {
	const receives, size, apart = 4, 64, 256
	a, b := newHeapPair(mems, level, nil)
	memory := b.mem.Bytes()[:receives*apart]
	clear(memory)
	var posted []*via.Work
	for i := range receives {
		w := &via.Work{Op: via.OpRecv, Length: size}
		for _, cut := range [][2]int{{0, 1}, {1, 30}, {30, size}} {
			w.Segments = append(w.Segments, via.Segment{Bytes: memory[i*apart+cut[0] : i*apart+cut[1]], Memory: b.mem})
		}
		b.link.PostRecv(w)
		posted = append(posted, w)
	}
	out, broken := &a.link.sender.out, false
	for ; len(in) >= 5 && out.tail < ringSize/2; in = in[5:] {
		r := record{tag: tag{kind: in[0], flags: in[1]}, length: uint32(in[2]), total: uint32(in[3]), immediate: uint32(in[3])}
		out.seq += uint64(int8(in[4]))
		out.begin(r)
		out.put(bytes.Repeat([]byte{0xff}, int(r.length)))
		out.end()
		storeWord(a.link.local.mem, offTail, out.tail)
		for _, d := range b.done[:b.cq.Poll(b.done)] {
			switch {
			case broken:
				t.Fatalf("%v: something is reported after the end", level)
			case d.Event != nil:
				broken = d.Event.Broken
				if level != ud && !broken || d.Event.Code == via.AsyncCatastrophic {
					t.Fatalf("%v: event %v", level, d.Event)
				}
			case len(posted) == 0 || d.Work != posted[0] || d.Work.Moved > size && d.Work.Status&via.StatusOpMask != via.StatusOpRemoteWrite:
				t.Fatalf("%v: a receive ends that is not the next, or with %d bytes", level, d.Work.Moved)
			default:
				posted = posted[1:]
			}
		}
	}
	for i, v := range memory {
		if v != 0 && i%apart >= size {
			t.Fatalf("%v: byte %d is written", level, i)
		}
	}
}
