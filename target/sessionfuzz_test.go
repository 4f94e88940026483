package target_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// FuzzSession drives a session of the initiator by whatever bytes: logins,
// opens and closes, commands in every mode with good and bad segments, raw
// messages, immediates, logouts and lost connections. A referee checks that no
// worker panics, that answers are well formed, and that the session leaves
// nothing: connections, opens, ranges of the disk, descriptors, goroutines.
func FuzzSession(f *testing.F) {
	for _, seed := range sessionSeeds {
		f.Add(seed)
	}
	golden, err := filepath.Glob("../internal/wire/testdata/golden/*.hex")
	must(f, err)
	if len(golden) == 0 {
		f.Fatal("no golden files")
	}
	for _, name := range golden {
		text, err := os.ReadFile(name)
		must(f, err)
		var b []byte
		for line := range strings.Lines(string(text)) { // an offset, and the bytes behind it
			part, err := hex.DecodeString(strings.Join(strings.Fields(line)[1:], ""))
			must(f, err)
			b = append(b, part...)
		}
		for connection := range byte(2) {
			seed := []byte{actOpen, 1, 1, actJoin, 1, actRaw, connection, 1, byte(min(len(b), 255))}
			f.Add(append(seed, b[:min(len(b), 255)]...))
		}
	}
	bad := disk(f, "bad")
	file := fileDisk(f, "file")
	r := newRig(f, target.Config{Depth: 4, InlineMax: 4096}, disk(f, "good"), bad, file)
	good := r.attach(f, "good")
	base := r.state()
	for _, seed := range sessionSeeds { // the first sessions make what stays
		x := &fuzzSession{t: f, r: r, input: seed, id: newID()}
		x.run()
		must(f, x.close())
		waitFor(f, "the server to be as before", func() bool { return r.state() == base })
	}
	var rest rest
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 4096 {
			return
		}
		if rest.goroutines == 0 {
			// The fuzzer has some goroutines, and the process opens a few files
			// once. A leak of every session exceeds that soon.
			rest = restOf(t)
			rest.goroutines, rest.descriptors = rest.goroutines+4, rest.descriptors+4
		}
		x := &fuzzSession{t: t, r: r, input: input, id: newID()}
		x.run()
		must(t, x.close())
		waitFor(t, "the server to be as before", func() bool { return r.state() == base })
		waitFor(t, fmt.Sprintf("%+v to be %+v", restOf(t), rest), func() bool {
			now := restOf(t)
			return now.descriptors <= rest.descriptors && now.goroutines <= rest.goroutines
		})
		if n := r.server.Status().Panics; n != 0 {
			t.Fatalf("%d panics: %s", n, r.log)
		}
		ranges := bad.Device.(block.Mapped).Ranges()
		if !ranges.TryAcquire(0, 16<<20, true) {
			t.Fatal("a range of the disk is still held")
		}
		ranges.Release(0, 16<<20, true)
		if err := errors.Join(good.writeInline(0, []byte("next")), good.keepalive()); err != nil {
			t.Fatalf("the next initiator: %v", err)
		}
	})
}

// rest is what a process has when no fuzzed session is there.
type rest struct{ descriptors, goroutines int }

func restOf(t testing.TB) rest { return rest{descriptors(t), runtime.NumGoroutine()} }

// Acts of a fuzzed session.
const (
	actOpen    = iota // mode, export
	actClose          // open
	actJoin           // connection
	actCommand        // connection, then a command
	actRaw            // connection, how, length, bytes
	actImmediate
	actKeepAlive
	actDiscover
	actLogout // connection
	actCut    // connection
	actAnswers
	acts
)

// sessionSeeds are whole sessions.
var sessionSeeds = [][]byte{
	{actOpen, 1, 1, actJoin, 1, actCommand, 1, 1, 1, 0, 0, 1, 8, 0, 0, actAnswers, 1, actLogout, 1, actLogout, 0},
	{actOpen, 1, 1, actJoin, 1, actCommand, 1, 2, 2, 0, 0, 1, 8, 0, 0, actCommand, 1, 1, 3, 0, 0, 2, 200, 1, 0, actAnswers, 1, actCut, 1},
	{actOpen, 0, 2, actJoin, 2, actCommand, 2, 1, 3, 0, 0, 3, 255, 2, 1, actClose, 0, actOpen, 2, 2, actCut, 0},
	{actOpen, 1, 1, actJoin, 1, actJoin, 2, actCommand, 1, 2, 2, 0, 0, 3, 128, 3, 0, actCommand, 2, 2, 2, 0, 0, 3, 128, 3, 0, actClose, 0},
	{actKeepAlive, actDiscover, actImmediate, 0, 1, 0, 0, 0, actOpen, 9, 9, actRaw, 0, 1, 64, 0x42},
}

// fuzzSession is an initiator that does what the input says.
type fuzzSession struct {
	t     testing.TB
	r     *rig
	input []byte
	id    [16]byte

	peers  [4]*peer // the first is the control connection
	memory [4]exposed
	opens  uint32
}

// byte takes a byte of the input; 0 when it is used up.
func (x *fuzzSession) byte() (b byte) {
	if len(x.input) > 0 {
		b, x.input = x.input[0], x.input[1:]
	}
	return b
}

// peer returns the connection that the next byte names, or nil.
func (x *fuzzSession) peer() (*peer, int) {
	i := int(x.byte()) % len(x.peers)
	if p := x.peers[i]; p != nil && !p.lost {
		return p, i
	}
	return nil, i
}

func (x *fuzzSession) run() {
	x.peers[0] = x.r.peer(x.t)
	must(x.t, x.peers[0].login(x.peers[0].loginRequest(wire.RoleControl, x.id, 0)))
	for len(x.input) > 0 {
		x.act()
		for i := range x.peers {
			x.answers(i)
		}
	}
}

// act does one act. Errors are those of connections that the target ended.
func (x *fuzzSession) act() {
	switch x.byte() % acts {
	case actOpen:
		x.opens++
		mode, name := x.byte(), [...]string{"", "bad", "file", "good", "none"}[x.byte()%5]
		x.control(&wire.OpenRequest{ID: x.opens, PathEpoch: 1, OpenID: x.opens, Mode: wire.OpenMode(mode % 6), Name: name})
	case actClose:
		handle := uint32(x.byte())
		x.control(&wire.CloseRequest{ID: 1, PathEpoch: 1, Export: uint16(handle), OpenID: handle + 1})
	case actJoin:
		x.join(int(x.byte()) % len(x.peers))
	case actCommand:
		if p, i := x.peer(); p != nil {
			x.command(p, i)
		}
	case actRaw:
		x.raw()
	case actImmediate:
		if p, _ := x.peer(); p != nil {
			var b [4]byte
			for i := range b {
				b[i] = x.byte()
			}
			_ = p.sendImmediate(wire.Immediate(binary.LittleEndian.Uint32(b[:])))
		}
	case actKeepAlive:
		x.control(&wire.KeepAlive{ID: 1, PathEpoch: 1})
	case actDiscover:
		x.control(&wire.DiscoverRequest{ID: 1, PathEpoch: 1, Cursor: uint32(x.byte())})
	case actLogout:
		if p, _ := x.peer(); p != nil {
			x.send(p, &wire.Logout{ID: 1, PathEpoch: 1})
		}
	case actCut:
		if p, i := x.peer(); p != nil {
			must(x.t, p.close())
			x.peers[i] = nil
		}
	case actAnswers:
		for range 100 { // there may be nothing to come
			for i := range x.peers {
				x.answers(i)
			}
			runtime.Gosched()
		}
	}
}

// control sends a message on the control connection.
func (x *fuzzSession) control(m wire.Message) {
	if p := x.peers[0]; p != nil && !p.lost {
		x.send(p, m)
	}
}

func (x *fuzzSession) send(p *peer, m wire.Message) {
	b := make([]byte, wire.MaxControlSize)
	if n, err := m.Encode(b); err == nil {
		_ = p.send(b[:n])
	}
}

// join logs in an I/O connection, which the target may refuse.
func (x *fuzzSession) join(i int) {
	if i == 0 || x.peers[i] != nil {
		return
	}
	p, err := connect(x.r.nic, x.r.host, nil)
	must(x.t, err)
	x.peers[i] = p
	if p.login(p.loginRequest(wire.RoleIO, x.id, uint16(i))) != nil {
		p.lost = true
		return
	}
	x.memory[i], err = p.expose(1<<20, readWrite)
	must(x.t, err)
}

// command sends a command of the input: opcode, mode, export, slot, segments,
// length, offset, and what is wrong with it.
func (x *fuzzSession) command(p *peer, i int) {
	cmd := wire.Command{
		Opcode: wire.Opcode(1 + x.byte()%8), Mode: wire.DataMode(x.byte() % 5), Export: uint16(x.byte() % 8), Slot: uint16(x.byte() % 5),
	}
	n, size := int(x.byte()%(wire.MaxSegments+1)), uint32(x.byte())<<9
	cmd.Offset = uint64(x.byte()) << 12
	wrong := x.byte()
	if cmd.Mode == wire.ModePull || cmd.Mode == wire.ModePlace {
		for s := range n {
			segment := wire.Segment{Addr: uint64(s) << 17, Handle: 1, Length: size}
			if i > 0 && x.memory[i].Memory != nil {
				segment = x.memory[i].segment(s<<17, int(size))
			}
			if wrong&1 != 0 {
				segment.Addr += 1 << 20 // in part or as a whole outside
			}
			if wrong&2 != 0 && s > 0 {
				segment.Length -= 7
			}
			cmd.Segments[s] = segment
			cmd.Length += segment.Length
		}
		cmd.NumSegments = uint8(n)
	} else {
		cmd.Length = min(size, 4096)
	}
	var payload []byte
	if cmd.Mode == wire.ModeInline && cmd.Opcode == wire.OpWrite {
		payload = make([]byte, cmd.Length)
		cmd.InlineLength = cmd.Length
	}
	if wrong&4 != 0 {
		cmd.Length += 512
	}
	if wrong&8 != 0 {
		cmd.Offset = ^uint64(0) >> (wrong >> 4)
	}
	msg := p.encode(cmd, payload)
	if wrong&16 != 0 {
		msg[int(wrong)%len(msg)] ^= wrong
		if len(msg) >= 64 {
			seal(msg)
		}
	}
	_ = p.send(msg)
}

// raw sends bytes of the input, with good checksums if it says so.
func (x *fuzzSession) raw() {
	p, _ := x.peer()
	how, n := x.byte(), min(int(x.byte()), len(x.input))
	messages := fuzzMessages(append([]byte{how, byte(n), 0}, x.input[:n]...))
	x.input = x.input[n:]
	for _, m := range messages {
		if p != nil && !m.immediate {
			_ = p.send(m.bytes)
		}
	}
}

// answers checks what has arrived at a connection.
func (x *fuzzSession) answers(i int) {
	p := x.peers[i]
	if p == nil {
		return
	}
	p.poll()
	for _, e := range p.queue {
		if err := wellFormed(p, e); err != nil {
			x.t.Fatalf("connection %d: %v", i, err)
		}
	}
	p.queue = nil
}

// wellFormed checks an answer of the target.
func wellFormed(p *peer, e event) error {
	switch {
	case e.msg == nil:
		if t := e.immediate.Type(); t != wire.ImmOK && t != wire.ImmOKData && t != wire.ImmKeepAliveAck {
			return fmt.Errorf("immediate %#x of type %d", uint32(e.immediate), t)
		}
		return nil
	case wire.RawOpcode(e.msg).IsControl():
		if _, err := wire.PeekControl(e.msg); err != nil {
			return fmt.Errorf("control message % x: %w", e.msg, err)
		}
		return nil
	}
	var r wire.Reply
	if err := r.Decode(e.msg); err != nil {
		return fmt.Errorf("reply % x: %w", e.msg, err)
	}
	if r.Slot-p.answer.SlotBase >= p.answer.SlotCount {
		return fmt.Errorf("reply of slot %d, the connection has %d from %d", r.Slot, p.answer.SlotCount, p.answer.SlotBase)
	}
	return nil
}

// close ends all connections, without a logout.
func (x *fuzzSession) close() error {
	var errs []error
	for _, p := range x.peers {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}
