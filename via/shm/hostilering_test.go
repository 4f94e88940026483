package shm

import (
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// msg is a whole message's record.
func msg(n uint32) record {
	return record{length: n, tag: tag{kind: recordMessage, flags: flagFirst | flagLast}, total: n}
}

func TestHostileTail(t *testing.T) {
	for name, tail := range map[string]uint64{
		"one past the ring":   ringSize + recordAlign,
		"far ahead":           1 << 63,
		"all ones":            ^uint64(0),
		"unaligned":           recordAlign + 8,
		"before the consumed": 0,
		"just before":         recordHeader + 64 - recordAlign,
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			b.keeps() // consumes one record of 64 bytes
			b.peer.word(offTail, tail)
			ringBell(b.peer.data)
			b.loses()
		})
	}
}

func TestHostileRecord(t *testing.T) {
	const first, last, imm = flagFirst, flagLast, flagImmediate
	type step struct {
		r record
		n int // bytes of payload really written
	}
	for name, steps := range map[string][]step{
		"longer than a fragment": {{record{length: maxFragment + 1, tag: tag{kind: recordMessage, flags: first | last}, total: maxFragment + 1}, 0}},
		"longer than available":  {{msg(4096), 16}},
		"length all ones":        {{record{length: ^uint32(0), tag: tag{kind: recordMessage, flags: first | last}, total: ^uint32(0)}, 0}},
		"length wraps padded":    {{record{length: ^uint32(0) - 14, tag: tag{kind: recordMessage, flags: first | last}}, 0}},
		"unknown flag":           {{record{length: 0, tag: tag{kind: recordMessage, flags: first | last | 16}}, 0}},
		"unknown kind":           {{record{length: 0, tag: tag{kind: 9, flags: first | last}}, 0}},
		"kind 0":                 {{record{}, 0}},
		"first missing":          {{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 8}, 8}},
		"middle without a first": {{record{length: 8, tag: tag{kind: recordMessage}, total: 16}, 8}},
		"first twice": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 16}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: first | last}, total: 16}, 8},
		},
		"last too early": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 32}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 32}, 8},
		},
		"more than the total": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 12}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 12}, 8},
		},
		"another total": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 12}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 16}, 8},
		},
		"another total, the right length": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 16}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 99}, 8},
		},
		"first longer than the total": {{record{length: 16, tag: tag{kind: recordMessage, flags: first | last}, total: 8}, 16}},
		"immediate before the last": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first | imm}, total: 16}, 8},
			{record{length: 8, tag: tag{kind: recordMessage, flags: last}, total: 16}, 8},
		},
		"longer than the receive":    {{msg(8192), 8192}},
		"written with payload":       {{record{length: 8, tag: tag{kind: recordWritten, flags: imm}, total: 8}, 8}},
		"written with a message bit": {{record{tag: tag{kind: recordWritten, flags: imm | first}, total: 8}, 0}},
		"written without immediate":  {{record{tag: tag{kind: recordWritten}, total: 8}, 0}},
		"written too much":           {{record{tag: tag{kind: recordWritten, flags: imm}, total: ^uint32(0)}, 0}},
		"written inside a message": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 16}, 8},
			{record{tag: tag{kind: recordWritten, flags: imm}, total: 8}, 0},
		},
		"refused with unknown code":     {{record{tag: tag{kind: recordFailed}, immediate: 1 << 31}, 0}},
		"refused with payload":          {{record{tag: tag{kind: recordFailed}, length: 8}, 8}},
		"refused with a message bit":    {{record{tag: tag{kind: recordFailed, flags: last}}, 0}},
		"refused a read with immediate": {{record{tag: tag{kind: recordFailed, flags: imm}, immediate: uint32(via.AsyncRdmaReadProt)}, 0}},
		"refused a write inside a message": {
			{record{length: 8, tag: tag{kind: recordMessage, flags: first}, total: 16}, 8},
			{record{tag: tag{kind: recordFailed, flags: imm}, immediate: uint32(via.AsyncRdmaWriteProt)}, 0},
		},
		"refused": {{refusal(via.AsyncRdmaReadProt), 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			var posted []*via.Descriptor
			for i := range 2 {
				d := b.descriptor(i, via.OpRecv, 1<<20+i*8192, 4096)
				check(t, b.vi.PostRecv(d))
				posted = append(posted, d)
			}
			guard := b.mem.Bytes()[1<<20+4096 : 1<<20+8192] // between the receives
			for i := range guard {
				guard[i] = 0xa5
			}
			for _, s := range steps {
				b.peer.record(s.r, make([]byte, s.n))
			}
			b.peer.publish()
			b.loses()
			for i := range guard {
				if guard[i] != 0xa5 {
					t.Fatalf("byte %d behind a receive was written", i)
				}
			}
			for _, d := range posted {
				b.await(d) // every descriptor completes, in some way
			}
		})
	}
}

// TestMemoryGoneInsideMessage unmaps the memory of a receive between two pieces
// of a message.
func TestMemoryGoneInsideMessage(t *testing.T) {
	b := attack(t)
	arena, err := b.nic.NewArena(4096)
	check(t, err)
	m, err := b.nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: b.tag})
	check(t, err)
	d := b.descriptor(0, via.OpRecv, 0, 0)
	d.Reset(via.OpRecv)
	d.AddSegment(m.Addr(), m.Handle(), 4096)
	check(t, b.vi.PostRecv(d))
	b.peer.record(record{length: 8, tag: tag{kind: recordMessage, flags: flagFirst}, total: 16}, make([]byte, 8))
	b.peer.publish()
	until(t, "the first piece", func() bool { return b.vi.Stats().BytesCopied == 8 }, b.station)
	check(t, m.Deregister())
	check(t, arena.Close())
	b.peer.record(record{length: 8, tag: tag{kind: recordMessage, flags: flagLast}, total: 16}, make([]byte, 8))
	b.peer.publish()
	if c := b.await(d); c.Status&via.StatusErrorMask != via.StatusProtectionError {
		t.Errorf("the receive says %v", c.Status)
	}
	b.loses()
}

// TestHostileHead forges how far the peer has read, once the victim needs room.
func TestHostileHead(t *testing.T) {
	for name, head := range map[string]uint64{
		"past the published": ringSize + recordAlign,
		"far past":           1 << 63,
		"all ones":           ^uint64(0) &^ 15,
		"unaligned":          8,
	} {
		for _, level := range []via.ReliabilityLevel{rd, rr} {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				b := attackAt(t, testTimeouts, level)
				b.fillRing()
				b.peer.word(offHead, head)
				ringBell(b.peer.space)
				b.loses()
			})
		}
	}
	t.Run("backward", func(t *testing.T) {
		b := attack(t)
		b.fillRing()
		b.peer.word(offHead, ringSize/2)
		ringBell(b.peer.space)
		until(t, "the ring to fill again", func() bool {
			return loadWord(b.peer.victim.mem, offTail) > ringSize
		}, b.station)
		b.peer.word(offHead, 0)
		ringBell(b.peer.space)
		b.loses()
	})
}

// fillRing posts sends to the hostile peer until its ring is full.
func (b *attacked) fillRing() {
	b.tb.Helper()
	before := b.vi.Stats().Stalls
	for i := range stationDepth {
		check(b.tb, b.vi.PostSend(b.descriptor(i, via.OpSend, 1<<20, 60<<10)))
	}
	until(b.tb, "a stall", func() bool { return b.vi.Stats().Stalls > before }, b.station)
}

// TestPeerNeverReads: a sender stalls, loses nothing and delays no other link.
func TestPeerNeverReads(t *testing.T) {
	b := attack(t)
	payload := b.mem.Bytes()[1<<20:]
	for i := range 60 << 10 {
		payload[i] = byte(i * 13)
	}
	b.fillRing()
	for range 20 {
		b.healthy.check()
	}
	done := len(b.done)
	if done == 0 || done >= stationDepth {
		t.Fatalf("%d of %d sends are done while the peer does not read", done, stationDepth)
	}
	// Now it reads: the rest arrives.
	r := reader{ring: b.peer.victim.ring()}
	var got int
	for deadline := time.Now().Add(time.Minute); got < stationDepth*60<<10; {
		check(t, r.setWord(loadWord(b.peer.victim.mem, offTail)))
		for {
			rec, ok, err := r.next()
			check(t, err)
			if !ok {
				break
			}
			piece := make([]byte, rec.length)
			r.payload(0, piece)
			for i, v := range piece {
				if at := (got + i) % (60 << 10); v != byte(at*13) {
					t.Fatalf("byte %d of the stream is %d", got+i, v)
				}
			}
			got += len(piece)
			r.skip(rec)
		}
		b.peer.word(offHead, r.head)
		b.poll()
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes arrived", got)
		}
	}
	until(t, "all sends", func() bool { return len(b.done) == stationDepth }, b.station)
	b.healthy.check()
}
