package initiator_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// How a fuzzed target answers a message of the initiator; the answer's length,
// two bytes, and the answer follow.
const (
	answerWell     = 1  // as a correct target; the bytes are not used
	answerMatching = 2  // with the ID and epoch of the request, and good checksums
	answerKind     = 4  // with the opcode of the answer
	answerLast     = 8  // and end the connection
	answerTwice    = 16 // which the initiator does not expect
)

// Modes of a fuzzed session, the first byte of the input.
const (
	sessionSealed   = 1
	sessionDiscover = 2
)

// scriptedTarget answers the messages of all connections of one session, one
// step of the input each. It is used up with the input: then connections end.
type scriptedTarget struct {
	guard *handshake.Guard
	mu    sync.Mutex
	input []byte
	keys  atomic.Pointer[seal.Session]
}

// begin starts the next session.
func (f *scriptedTarget) begin(input []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.input = input
	f.keys.Store(nil)
}

// next takes a step of the input.
func (f *scriptedTarget) next() (how byte, b []byte, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.input) < 3 {
		return 0, nil, false
	}
	how = f.input[0]
	n := min(int(binary.LittleEndian.Uint16(f.input[1:])), len(f.input)-3, 8192)
	b = append([]byte(nil), f.input[3:3+n]...)
	f.input = f.input[3+n:]
	return how, b, true
}

// message answers a message as the next step says.
func (f *scriptedTarget) message(e *end, msg []byte) (handled, goesOn bool) {
	how, b, ok := f.next()
	if !ok {
		return true, false
	}
	if how&answerWell != 0 {
		if wire.RawOpcode(msg) == wire.OpAuth {
			return true, f.authenticate(e, msg)
		}
		return false, true
	}
	if how&answerMatching != 0 {
		match(b, msg, how&answerKind != 0)
	}
	for range 1 + how&answerTwice/answerTwice {
		e.send(b)
	}
	return true, how&answerLast == 0
}

// match makes an answer one to msg, with good checksums.
func match(b, msg []byte, kind bool) {
	if len(b) < wire.HeaderSize || len(msg) < wire.HeaderSize {
		return
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	if kind {
		b[0] = msg[0] | 0x80
	}
	if wire.RawOpcode(msg).IsCommand() {
		copy(b[4:6], msg[4:6])      // slot
		copy(b[8:16], msg[8:16])    // number and epoch
		b[6], b[7] = b[6]&1, b[7]&1 // most bits are reserved
	} else {
		copy(b[4:16], msg[4:16]) // magic, ID and epoch
		binary.LittleEndian.PutUint32(b[16:], uint32(len(b)-wire.HeaderSize))
		binary.LittleEndian.PutUint32(b[20:], wire.DataCRC(b[wire.HeaderSize:]))
		clear(b[24:58])
	}
	binary.LittleEndian.PutUint16(b[58:], wire.HeaderSize)
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], table))
}

// authenticate does the target's part of a handshake, or of a join, and seals
// the connection behind it.
func (f *scriptedTarget) authenticate(e *end, msg []byte) bool {
	var m wire.Auth
	if m.Decode(msg) != nil {
		return false
	}
	if e.auth == nil {
		var err error
		if e.auth, err = f.guard.NewTarget("initiator", nil); err != nil {
			return false
		}
	}
	out, done, err := e.auth.Step(&m)
	if out != nil {
		e.sendControl(out)
	}
	if err != nil || !done {
		return err == nil
	}
	result := e.auth.Result()
	sealer, opener, err := result.Keys(seal.Target)
	if err != nil {
		return false
	}
	if len(result.Certificates) > 0 {
		f.keys.Store(result.Session)
	}
	e.c.Seal(sealer, opener)
	return true
}

// goldenMessages are messages as they were recorded.
func goldenMessages(t testing.TB) (all [][]byte) {
	t.Helper()
	names, err := filepath.Glob("../internal/wire/testdata/golden/*.hex")
	must(t, err)
	if len(names) == 0 {
		t.Fatal("no golden files")
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(t, err)
		var b []byte
		for line := range strings.Lines(string(text)) { // an offset, and the bytes behind it
			part, err := hex.DecodeString(strings.Join(strings.Fields(line)[1:], ""))
			must(t, err)
			b = append(b, part...)
		}
		all = append(all, b)
	}
	return all
}

// FuzzTarget has a target answer the messages of a whole session by whatever
// bytes: its handshake, login, open, requests, keepalives and logout, in clear
// and sealed. The initiator does not panic, each call and each request ends,
// data comes from an answer only, and nothing is left.
func FuzzTarget(f *testing.F) {
	step := func(how byte, b []byte) []byte {
		return append([]byte{how, byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	well := step(answerWell, nil)
	messages := goldenMessages(f)
	for mode := range byte(4) {
		lead := []byte{mode}
		for range 12 {
			f.Add(lead)
			for i, b := range messages {
				if (i+len(lead))%7 == 0 { // all of them at each place would be too many
					f.Add(append(append(append([]byte(nil), lead...), step(answerMatching|answerKind, b)...), well...))
					f.Add(append(append(append([]byte(nil), lead...), step(answerTwice, b)...), well...))
				}
			}
			lead = append(lead, well...)
		}
	}
	folder := certificates(f, "alice")
	target := &scriptedTarget{guard: targetSecurity(f, folder)}
	target.guard.Session = func([seal.NameSize]byte) *seal.Session { return target.keys.Load() }
	security := initiatorSecurity(folder, "alice", targetName)
	config, err := security()
	must(f, err)
	stages := map[bool]*stage{}
	for _, sealed := range []bool{false, true} {
		stages[sealed] = newStage(f, play{message: target.message, idle: func(*end) bool { return false }, sealable: sealed})
	}
	most := 0
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 1<<16 {
			return
		}
		target.begin(b[1:])
		s := stages[b[0]&sessionSealed != 0]
		cfg := s.config()
		cfg.Timeout = testTimeout
		if b[0]&sessionSealed != 0 {
			cfg.Security = func() (handshake.Config, error) { return config, nil }
		}
		if b[0]&sessionDiscover != 0 {
			_, _ = initiator.Discover(context.Background(), cfg)
		} else if d, err := initiator.Dial(context.Background(), cfg); err == nil {
			useDisk(t, d)
			_ = d.Close() // it tells of a logout without an answer
		}
		if most == 0 {
			most = runtime.NumGoroutine() + 8 // the fuzzer's, and those of ends that are about to end
		}
		waitFor(t, "goroutines of the session to end", func() bool { return runtime.NumGoroutine() <= most })
	})
}

// useDisk sends requests of each kind, each of which ends.
func useDisk(t *testing.T, d *initiator.Device) {
	t.Helper()
	q, err := d.NewQueue(4)
	if err != nil {
		return
	}
	info := d.Info()
	size := max(512, int64(info.MinimumBlock))
	read, write := request(block.Read, 0, size), request(block.Write, 1<<20, size)
	large, status := request(block.Read, 2<<20, 64<<10), request(block.Status, 4<<20, 64<<10)
	pending := 0
	for _, r := range []*block.Request{read, write, large, status, request(block.Flush, 0, 0)} {
		if size <= 4096 && info.Check(r.Op, r.Flags, uint64(r.Offset), uint64(r.Length)) == 0 {
			submit(t, q, r)
			pending++
		}
	}
	rs, err := reap(q, pending)
	must(t, err)
	for _, r := range rs {
		if r.Err == nil && r.Op == block.Read && int64(len(r.Data)) != r.Length {
			t.Errorf("read of %d bytes has data of %d", r.Length, len(r.Data))
		}
	}
	_ = q.Close() // it tells of a target that is inside its memory
}
