package rc_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// A script plays the peer of one queue pair, a line for each step. Numbers are
// decimal; PSNs count from the first of their direction.
//
//	recv N, post OP N     post a receive or work of N bytes; "imm": immediate
//	-> OPCODE k=v …       packet arrives: n payload, len of RETH, a AckRequest
//	<- OPCODE k=v …       the next packet that is sent
//	quiet                 no packet is sent
//	done STATUS           the next work has ended
//	got STATUS N          the next receive has ended, with N bytes
//	event E               the next event
//	nothing               no work, receive or event
//	alive, silent         Life changed since the last such step, or did not
//	probe                 the QP asks whether its peer exists
//	wait D                time passes, and Timeout is called
//	gone, back            memory is withdrawn, or accessible again
//	burst N               from now on Emit sends N packets after each arrival
type script struct {
	t      *testing.T
	qp     *rc.QP
	cfg    rc.Config
	now    time.Duration
	memory scriptMemory
	burst  *rc.Burst
	out    []wire.Packet
	ids    uint64
	life   uint64
}

// scriptMemory lets the peer access 1000 bytes at address 0 with key 1: read
// and write; with key 2 read only.
type scriptMemory struct {
	bytes [1000]byte
	gone  bool
}

func (m *scriptMemory) Remote(key uint32, addr uint64, length int, a rc.Access) []byte {
	if m.gone || key != 1 && (key != 2 || a == rc.RemoteWrite) || addr+uint64(length) > uint64(len(m.bytes)) {
		return nil
	}
	return m.bytes[addr:][:length]
}

func (m *scriptMemory) Local(uint64) bool { return !m.gone }

var opcodeNames = func() map[string]wire.Opcode {
	names := make(map[string]wire.Opcode)
	for o := range 256 {
		names[strings.ReplaceAll(strings.TrimPrefix(wire.Opcode(o).String(), "RC "), " ", "-")] = wire.Opcode(o)
	}
	return names
}()

var events = map[string]rc.Event{
	"empty-queue": rc.EmptyQueue, "write-refused": rc.WriteRefused, "write-aborted": rc.WriteAborted,
	"read-refused": rc.ReadRefused, "broken": rc.Broken,
}

// play runs the script's lines on a new queue pair.
func play(t *testing.T, cfg rc.Config, lines string) {
	t.Helper()
	s := &script{t: t, cfg: cfg, now: time.Second, burst: rc.NewBurst(8)}
	qp, err := rc.New(cfg, &s.memory)
	if err != nil {
		t.Fatal(err)
	}
	s.qp, s.life = qp, qp.Life()
	for i, line := range strings.Split(lines, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if complaint := s.step(strings.Fields(line)); complaint != "" {
			t.Fatalf("line %d, %s: %s", i, line, complaint)
		}
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// step executes a line and returns what is wrong.
func (s *script) step(f []string) string {
	switch f[0] {
	case "recv":
		s.ids++
		s.qp.PostReceive(&rc.Receive{ID: s.ids, Segments: [][]byte{make([]byte, number(f[1]))}})
	case "post":
		s.ids++
		op := map[string]rc.Op{"send": rc.Send, "write": rc.Write, "read": rc.Read}[f[1]]
		s.qp.Post(&rc.Work{ID: s.ids, Op: op, Key: 1, Segments: [][]byte{make([]byte, number(f[2]))}, HasImmediate: len(f) > 3})
	case "->":
		s.arrive(f[1], fields(f[2:]))
	case "<-":
		return s.expectEmitted(f[1], fields(f[2:]))
	case "quiet":
		if s.collect(); len(s.out) > 0 {
			return fmt.Sprintf("%v %+v", s.out[0].Opcode, s.out[0])
		}
	case "done":
		if w := s.qp.PollSend(); w == nil || w.Status.String() != strings.Join(f[1:], " ") {
			return fmt.Sprintf("%+v", w)
		}
	case "got":
		r := s.qp.PollReceive()
		if n := number(f[len(f)-1]); r == nil || r.Status.String() != strings.Join(f[1:len(f)-1], " ") || r.Length != n {
			return fmt.Sprintf("%+v", r)
		}
	case "event":
		if e := s.qp.PollEvent(); e != events[f[1]] {
			return fmt.Sprint(e)
		}
	case "nothing":
		if w, r, e := s.qp.PollSend(), s.qp.PollReceive(), s.qp.PollEvent(); w != nil || r != nil || e != rc.NoEvent {
			return fmt.Sprint(w, r, e)
		}
	case "alive", "silent":
		before := s.life
		if s.life = s.qp.Life(); (s.life != before) != (f[0] == "alive") {
			return fmt.Sprintf("life is %d after %d", s.life, before)
		}
	case "probe":
		s.qp.Probe(s.now)
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			panic(err)
		}
		s.now += d
		s.qp.Timeout(s.now)
	case "burst":
		s.burst = rc.NewBurst(number(f[1]))
	case "gone", "back":
		s.memory.gone = f[0] == "gone"
	default:
		panic("no such step: " + f[0])
	}
	return ""
}

func fields(f []string) map[string]int {
	m := make(map[string]int)
	for _, x := range f {
		k, v, _ := strings.Cut(x, "=")
		m[k] = number(v)
	}
	return m
}

// arrive decodes a packet and passes it to Receive.
func (s *script) arrive(name string, f map[string]int) {
	op, ok := opcodeNames[name]
	if !ok {
		panic("no such opcode: " + name)
	}
	base := s.cfg.PeerPSN
	if op.Flags()&wire.Response != 0 {
		base = s.cfg.PSN
	}
	p := wire.Packet{Payload: make([]byte, f["n"])}
	p.BTH = wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: 7, PSN: base.Add(f["psn"]), AckRequest: f["a"] == 1}
	p.RETH = wire.RETH{Key: uint32(f["key"]), Addr: uint64(f["addr"]), Length: uint32(f["len"])}
	p.AETH = wire.AETH{Syndrome: wire.Syndrome(f["syn"]), MSN: wire.MSN(f["msn"])}
	var icrc wire.ICRC
	icrc.Set(address, address)
	b := p.Append(nil, &icrc, wire.Identification{})
	var in wire.Packet
	s.qp.Receive(&in, in.Decode(b, wire.DefaultPKey), s.now)
	s.collect()
}

// expectEmitted compares the next packet of Emit with the line.
func (s *script) expectEmitted(name string, f map[string]int) string {
	s.collect()
	if len(s.out) == 0 {
		return "no packet is sent"
	}
	p := s.out[0]
	s.out = s.out[1:]
	base := s.cfg.PSN
	if p.Opcode.Flags()&wire.Response != 0 {
		base = s.cfg.PeerPSN
	}
	if p.AckRequest {
		f["a"] += 2
	}
	is := map[string]int{
		"psn": p.PSN.Sub(base), "n": len(p.Payload), "len": int(p.RETH.Length), "addr": int(p.RETH.Addr),
		"syn": int(p.AETH.Syndrome), "msn": int(p.AETH.MSN), "a": 3, "key": int(p.RETH.Key),
	}
	if p.Opcode != opcodeNames[name] {
		return fmt.Sprintf("%v %v", p.Opcode, is)
	}
	for k, v := range f {
		if is[k] != v && (k != "a" || v != 2) {
			return fmt.Sprintf("%s is %d", k, is[k])
		}
	}
	return ""
}

// collect decodes all packets of Emit.
func (s *script) collect() {
	s.burst.Reset()
	s.qp.Emit(s.burst, s.now)
	var icrc wire.ICRC
	icrc.Set(address, address)
	for _, p := range s.burst.Packets() {
		b := append([]byte(nil), p.Header...)
		for _, x := range p.Payload {
			b = append(b, x...)
		}
		icrc.Seal(p.Trailer, wire.Identification{}, p.Header, p.Payload...)
		var out wire.Packet
		if r := out.Decode(append(b, p.Trailer...), wire.DefaultPKey); r != wire.Accepted {
			s.t.Fatalf("sent %v: %v", p.Header, r)
		}
		s.out = append(s.out, out)
	}
}
