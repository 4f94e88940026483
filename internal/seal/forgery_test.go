package seal_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// An attacker who has everything that was sent, on two connections in both
// directions and over three generations, has nothing accepted but the next
// capsule in its place.
func TestRecordedCapsulesOutOfPlace(t *testing.T) {
	session := newSession(t, seal.Limits{})
	const count = 12
	var recorded [][]byte
	var initiators [2]end
	for c := range initiators {
		i, target := connect(t, session, uint16(c))
		initiators[c] = i
		for k := range count {
			if k%4 == 3 {
				i.Ratchet()
				target.Ratchet()
			}
			recorded = append(recorded, i.capsule(t, []byte{byte(k)}), target.capsule(t, []byte{byte(k)}))
		}
	}
	for at := range count { // how many the target has received in order
		for n, b := range recorded {
			_, target := connect(t, session, 0)
			for k := range at {
				target.expect(t, recorded[2*k], []byte{byte(k)})
			}
			if n == 2*at { // the next one
				target.expect(t, b, []byte{byte(at)})
				continue
			}
			target.refuse(t, b, recorded[2*at]) // and then also the true one
		}
	}
}

func TestEveryFlippedBitOfCapsules(t *testing.T) {
	session := newSession(t, seal.Limits{})
	for _, n := range []int{0, 1, 15, 16, 17, 64, 144} {
		i, _ := connect(t, session, 1)
		b := i.capsule(t, pattern(n, 7))
		for bit := range 8 * len(b) {
			_, target := connect(t, session, 1)
			changed := bytes.Clone(b)
			changed[bit/8] ^= 1 << (bit % 8)
			target.refuse(t, changed, b)
		}
		for short := range b {
			_, target := connect(t, session, 1)
			target.refuse(t, b[:short])
		}
		_, target := connect(t, session, 1)
		target.refuse(t, append(bytes.Clone(b), 0))
	}
}

// The generation in the prefix is believed only when the tag says so, and only
// the present and the next one.
func TestGenerations(t *testing.T) {
	session := newSession(t, seal.Limits{Capsules: 3})
	i, target := connect(t, session, 1)
	for k := range 3 * 300 { // the byte of the prefix begins again
		if got := i.Sealer.Generation(); got != uint64(k/3) {
			t.Fatalf("capsule %d has generation %d", k, got)
		}
		b := i.capsule(t, []byte{byte(k)})
		target.expect(t, b, []byte{byte(k)})
		if got := target.Opener.Generation(); got != uint64(k/3) {
			t.Fatalf("capsule %d was opened with generation %d", k, got)
		}
	}
	for k := range 2 * 3 { // two generations are lost
		if b := i.capsule(t, nil); k == 2*3-1 {
			target.refuse(t, b)
		}
	}
}

// A generation ends with the blocks it has sealed, of payload too that the
// target seals.
func TestGenerationEndsWithItsBlocks(t *testing.T) {
	session := newSession(t, seal.Limits{Blocks: 2 * (seal.RecordSize/16 + 2)})
	i, target := connect(t, session, 1)
	for k := range 4 {
		command(t, i, target, seal.RecordSize)
		if got := i.Sealer.Generation(); got != uint64(k+1)/2 {
			t.Fatalf("generation %d after %d commands", got, k+1)
		}
	}
	for i.Sealer.Generation() == 2 {
		i.capsule(t, make([]byte, 64<<10))
	}
}

// Payload opens under its own command's keys, after any number of generations,
// in any order.
func TestPayloadOutlivesGenerations(t *testing.T) {
	session := newSession(t, seal.Limits{Capsules: 2})
	i, target := connect(t, session, 1)
	const commands, records = 9, 3
	var ends [commands][2]*seal.Payload
	plain := pattern(records*seal.RecordSize-100, 3)
	for c := range ends {
		ends[c][0], ends[c][1] = command(t, i, target, 3*seal.RecordSize)
	}
	piece := func(r int) []byte { return plain[r*seal.RecordSize : min(len(plain), (r+1)*seal.RecordSize)] }
	if seal.Records(len(plain)) != records {
		t.Fatalf("%d records", seal.Records(len(plain)))
	}
	for c := len(ends) - 1; c >= 0; c-- {
		for _, way := range [][2]*seal.Payload{{ends[c][0], ends[c][1]}, {ends[c][1], ends[c][0]}} {
			var all []record
			for r := range records {
				all = append(all, sealRecord(t, way[0], piece(r), r, "header"))
			}
			for r := records - 1; r >= 0; r-- {
				if got, err := all[r].open(t, way[1]); err != nil || !bytes.Equal(got, piece(r)) {
					t.Fatalf("record %d: %v", r, err)
				}
			}
		}
	}
}

// A record opens only as itself: not in another place of its command, under
// another header, for another command, in the other direction, on another
// connection, shortened, or changed.
func TestRecordsOutOfPlace(t *testing.T) {
	session := newSession(t, seal.Limits{Capsules: 3})
	plain := pattern(512, 3)
	type place struct{ conn, command, end, record, header int }
	headers := []string{"offset 0", "offset 4096"}
	var payloads [2][4][2]*seal.Payload
	sealed := map[place]record{}
	for c := range payloads {
		i, target := connect(t, session, uint16(c))
		for k := range payloads[c] {
			payloads[c][k][0], payloads[c][k][1] = command(t, i, target, 1024)
		}
	}
	for c := range payloads {
		for k := range payloads[c] {
			for e, p := range payloads[c][k] {
				for r := range 2 {
					sealed[place{c, k, e, r, k % 2}] = sealRecord(t, p, plain, r, headers[k%2])
				}
			}
		}
	}
	accepted := 0
	for from, r := range sealed {
		for c := range payloads {
			for k := range payloads[c] {
				for e := range 2 {
					for index := range 2 {
						for h := range headers {
							to := place{c, k, e, index, h}
							r.index, r.header = index, []byte(headers[h])
							_, err := r.open(t, payloads[c][k][1-e])
							if (err == nil) != (from == to) {
								t.Fatalf("the record of %+v as that of %+v: %v", from, to, err)
							}
							if err == nil {
								accepted++
							}
						}
					}
				}
			}
		}
	}
	if accepted != len(sealed) {
		t.Errorf("%d of %d accepted", accepted, len(sealed))
	}
}

func TestChangedRecords(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	p, q := command(t, i, target, 48)
	plain := pattern(48, 3)
	true_ := sealRecord(t, p, plain, 0, "header")
	for bit := range 8 * (len(plain) + seal.TagSize) {
		r := true_
		r.b = bytes.Clone(r.b)
		if at := bit / 8; at < len(r.b) {
			r.b[at] ^= 1 << (bit % 8)
		} else {
			r.tag[at-len(r.b)] ^= 1 << (bit % 8)
		}
		if _, err := r.open(t, q); err == nil {
			t.Fatalf("accepted with bit %d flipped", bit)
		}
	}
	for n := range plain {
		r := true_
		r.b = r.b[:n]
		if _, err := r.open(t, q); err == nil {
			t.Fatalf("accepted %d bytes", n)
		}
	}
	if got, err := true_.open(t, q); err != nil || !bytes.Equal(got, plain) {
		t.Fatal(err) // forged payload is the session's to end
	}
	q.Clear()
	if _, err := true_.open(t, q); err == nil {
		t.Error("accepted for no command")
	}
}

// In place, and of the length of a whole record.
func TestRecordInPlace(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	p, q := command(t, i, target, seal.RecordSize)
	b, plain := pattern(seal.RecordSize, 3), pattern(seal.RecordSize, 3)
	var tag [seal.TagSize]byte
	if err := p.Seal(b, b, 0, nil, &tag); err != nil || bytes.Contains(b, plain[:16]) {
		t.Fatal(err)
	}
	if err := q.Open(b, b, 0, nil, &tag); err != nil || !bytes.Equal(b, plain) {
		t.Fatal(err)
	}
	for _, n := range []int{0, seal.RecordSize + 1} {
		if err := p.Seal(make([]byte, n), make([]byte, n), 1, nil, &tag); err == nil {
			t.Errorf("sealed a record of %d bytes", n)
		}
	}
	if err := p.Seal(b[:1], b[:2], 1, nil, &tag); err == nil {
		t.Error("sealed a record into less")
	}
}

// A capsule needs its room, and a refusal for lack of it costs nothing.
func TestCapsuleWithoutRoom(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	b := make([]byte, 63+seal.Overhead)
	for _, n := range []int{64, -1, len(b)} {
		if _, _, err := i.Sealer.Capsule(b, n); err == nil || errors.Is(err, seal.ErrForged) {
			t.Errorf("a message of %d bytes: %v", n, err)
		}
	}
	target.expect(t, i.capsule(t, b), b)
}

// Random bytes are no capsule.
func TestRandomCapsules(t *testing.T) {
	session := newSession(t, seal.Limits{})
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		_, target := connect(t, session, 1)
		b := make([]byte, r.IntN(200))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		if len(b) > seal.PrefixSize { // what can be known
			copy(b, []byte{seal.Opcode, byte(r.IntN(2)), 0, 0, 0, 0, 0, 0})
		}
		target.refuse(t, b)
	}
}
