package hook_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest/loopback"
)

// piece is the size of a piece of a station's data.
const piece = 2048

var (
	allFaults = []via.Fault{
		via.FaultDrop, via.FaultDuplicate, via.FaultReorder, via.FaultCorrupt, via.FaultTruncate, via.FaultCut,
	}
	allLevels = []via.ReliabilityLevel{via.UnreliableDelivery, via.ReliableDelivery, via.ReliableReception}
)

// quiet is no asynchronous error.
const quiet = via.AsyncCode(-1)

// outcome is what becomes of three operations of which the second suffers a
// fault. For each operation the sender has a letter: ok, transport error or
// flushed. Arrived messages are the numbers of those that consumed a receive,
// or whose bytes were moved, with t or p for a receive that says transport or
// partial error.
type outcome struct {
	sender, arrived      string
	atSender, atReceiver via.AsyncCode
}

const lost = via.AsyncConnectionLost

// unharmed is the outcome where the fault shows nowhere.
var unharmed = outcome{"ooo", "123", quiet, quiet}

// kinds are the operations, each with its outcomes by fault and level.
var kinds = []struct {
	name      string
	op        via.Opcode
	immediate bool
	want      map[via.Fault][3]outcome
}{
	{"send", via.OpSend, true, consuming},
	{"write with immediate", via.OpRdmaWrite, true, consuming},
	{"write", via.OpRdmaWrite, false, map[via.Fault][3]outcome{
		via.FaultDrop:      {{"ooo", "13", quiet, quiet}, {"ooo", "1", lost, lost}, {"otf", "1", lost, lost}},
		via.FaultDuplicate: {unharmed, unharmed, unharmed},
		via.FaultReorder:   {{"ooo", "13", quiet, quiet}, {"ooo", "1", lost, lost}, unharmed},
		via.FaultCorrupt: {
			{"ooo", "13", quiet, via.AsyncRdmaWriteData},
			{"oof", "1", lost, via.AsyncRdmaWriteData},
			{"otf", "1", lost, via.AsyncRdmaWriteData},
		},
		via.FaultTruncate: {
			{"ooo", "13", quiet, via.AsyncRdmaWriteAbort},
			{"oof", "1", lost, via.AsyncRdmaWriteAbort},
			{"otf", "1", lost, via.AsyncRdmaWriteAbort},
		},
		via.FaultCut: {{"oof", "1", lost, lost}, {"oof", "1", lost, lost}, {"off", "1", lost, lost}},
	}},
	{"read", via.OpRdmaRead, false, map[via.Fault][3]outcome{
		via.FaultDrop:      {{}, failedRead, failedRead},
		via.FaultDuplicate: {{}, unharmed, unharmed},
		via.FaultReorder:   {{}, unharmed, unharmed},
		via.FaultCorrupt:   {{}, failedRead, failedRead},
		via.FaultTruncate:  {{}, failedRead, failedRead},
		via.FaultCut:       {{}, {"off", "1", lost, lost}, {"off", "1", lost, lost}},
	}},
}

var (
	consuming = map[via.Fault][3]outcome{
		via.FaultDrop:      {{"ooo", "13", quiet, quiet}, {"ooo", "1", lost, lost}, {"otf", "1", lost, lost}},
		via.FaultDuplicate: {unharmed, unharmed, unharmed},
		via.FaultReorder:   {{"ooo", "13", quiet, quiet}, {"ooo", "1", lost, lost}, unharmed},
		via.FaultCorrupt:   {{"ooo", "1t3", quiet, quiet}, {"oof", "1t", lost, lost}, {"otf", "1t", lost, lost}},
		via.FaultTruncate:  {{"ooo", "1p3", quiet, quiet}, {"oof", "1p", lost, lost}, {"otf", "1p", lost, lost}},
		via.FaultCut:       {{"oof", "1", lost, lost}, {"oof", "1", lost, lost}, {"off", "1", lost, lost}},
	}
	failedRead = outcome{"otf", "1", via.AsyncRdmaTransport, lost}
)

// Each fault on each kind of operation has its outcome at each level.
func TestFaultsOnTheWire(t *testing.T) {
	for _, kind := range kinds {
		for _, fault := range allFaults {
			for i, level := range allLevels {
				if kind.op == via.OpRdmaRead && level == via.UnreliableDelivery {
					continue
				}
				for _, size := range []int{0, 1, piece} {
					s := struck{kind.op, kind.immediate, level, size, 3, map[int]via.Fault{2: fault}}
					t.Run(fmt.Sprintf("%s/fault %d/%v/%d", kind.name, fault, level, size), func(t *testing.T) {
						s.run(t, kind.want[fault][i])
					})
				}
			}
		}
	}
}

// A fault of the last message is detected although no message follows it.
func TestFaultsOfTheLastMessage(t *testing.T) {
	both := outcome{"oo", "12", quiet, quiet}
	drop, late := map[int]via.Fault{2: via.FaultDrop}, map[int]via.Fault{2: via.FaultReorder}
	for _, c := range []struct {
		name   string
		level  via.ReliabilityLevel
		faults map[int]via.Fault
		want   outcome
	}{
		{"lost", via.UnreliableDelivery, drop, outcome{"oo", "1", quiet, quiet}},
		{"lost", via.ReliableDelivery, drop, outcome{"oo", "1", lost, lost}},
		{"lost", via.ReliableReception, drop, outcome{"ot", "1", lost, lost}},
		{"late", via.UnreliableDelivery, late, both},
		{"late", via.ReliableDelivery, late, both},
		{"late", via.ReliableReception, late, both},
		{"both late", via.UnreliableDelivery, map[int]via.Fault{1: via.FaultReorder, 2: via.FaultReorder}, both},
	} {
		t.Run(fmt.Sprintf("%s/%v", c.name, c.level), func(t *testing.T) {
			struck{via.OpSend, true, c.level, 100, 2, c.faults}.run(t, c.want)
		})
	}
}

// struck is a batch of operations of which some suffer faults.
type struck struct {
	op        via.Opcode
	immediate bool
	level     via.ReliabilityLevel
	size      int // bytes of each
	count     int
	faults    map[int]via.Fault
}

// run carries the batch out and compares the outcome.
func (s struck) run(t *testing.T, want outcome) {
	net := loopback.New()
	p := hook.Fault(net, hook.Plan{Faults: s.faults})
	a, b := newStationAt(t, p, s.level), newStationAt(t, net, s.level)
	for i := range s.count + 1 {
		b.stage(t, via.OpRecv, i, s.size, nil, 0, 0)
	}
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	from, to := a, b
	if s.op == via.OpRdmaRead {
		from, to = b, a
	}
	for i := range s.count {
		fill(from.area(i, s.size), i+1)
		imm, remote := uint32(0), b
		if s.immediate {
			imm = uint32(i + 1)
		}
		if s.op == via.OpSend {
			remote = nil
		}
		a.stage(t, s.op, i, s.size, remote, i, imm)
	}
	a.vi.Doorbell()
	a.poll()
	b.poll()
	got := outcome{initials(a.done), b.received(), only(t, a.codes), only(t, b.codes)}
	switch {
	case s.immediate:
		s.checkBytes(t, b)
	case s.size > 0:
		got.arrived = to.moved(s.size, s.count)
	default:
		got.arrived = want.arrived // no byte tells
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := p.Injected(); n != uint64(len(s.faults)) {
		t.Errorf("%d faults were injected, want %d", n, len(s.faults))
	}
	broken := want.atReceiver == lost || s.level != via.UnreliableDelivery && want.atReceiver != quiet
	for _, e := range []*station{a, b} {
		if (e.vi.State() == via.StateError) != broken {
			t.Errorf("a vi is %v", e.vi.State())
		}
	}
	if dropped := b.vi.Stats().Dropped + a.vi.Stats().Dropped; s.faults[2] == via.FaultDuplicate && dropped != 1 {
		t.Errorf("%d messages dropped, want the duplicate", dropped)
	}
}

// checkBytes checks what arrived as good.
func (s struck) checkBytes(t *testing.T, b *station) {
	t.Helper()
	for i, c := range b.done {
		if c.Status.Failed() {
			continue
		}
		if s.op == via.OpRdmaWrite {
			i = int(c.Immediate) - 1
		}
		if !bytes.Equal(b.area(i, s.size), pattern(s.size, int(c.Immediate))) {
			t.Errorf("message %d arrived as good with other bytes", c.Immediate)
		}
	}
}

// area is the i-th piece of a station's data.
func (s *station) area(i, size int) []byte { return s.mem.Bytes()[512<<10+i*piece:][:size] }

// stage stages an operation over the i-th piece of a station's data and, for
// RDMA, the j-th of its peer's.
func (s *station) stage(t tester, op via.Opcode, i, size int, peer *station, j int, imm uint32) *via.Descriptor {
	t.Helper()
	d, err := s.mem.NewDescriptor(s.used, 128)
	if err != nil {
		t.Fatal(err)
	}
	s.used += 128
	d.Reset(op)
	if peer != nil {
		d.SetRemote(peer.mem.Addr()+uint64(512<<10+j*piece), peer.mem.Handle())
	}
	d.AddSegment(s.mem.Addr()+uint64(512<<10+i*piece), s.mem.Handle(), uint32(size))
	if imm != 0 {
		d.SetImmediate(imm)
	}
	if op == via.OpRecv {
		err = s.vi.PostRecv(d)
	} else {
		err = s.vi.StageSend(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// fill writes bytes of which none is zero.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(1 + (seed*31+i)%255)
	}
}

// initials has a letter for each completion.
func initials(done []via.Completion) string {
	text := ""
	for _, c := range done {
		switch c.Status & via.StatusErrorMask {
		case 0:
			text += "o"
		case via.StatusTransportError:
			text += "t"
		case via.StatusPartialError:
			text += "p"
		case via.StatusFlushed:
			text += "f"
		default:
			text += "?"
		}
	}
	return text
}

// received has the immediate data or a letter for each receive that a message
// consumed.
func (s *station) received() string {
	text := ""
	for _, c := range s.done {
		switch initial := initials([]via.Completion{c}); initial {
		case "f":
		case "o":
			text += fmt.Sprint(c.Immediate)
		default:
			text += initial
		}
	}
	return text
}

// moved lists the pieces that have the bytes of their operation; another is as
// it was.
func (s *station) moved(size, count int) string {
	text := ""
	for i := range count {
		switch b := s.area(i, size); {
		case bytes.Equal(b, pattern(size, i+1)):
			text += fmt.Sprint(i + 1)
		case !bytes.Equal(b, make([]byte, size)):
			text += "?"
		}
	}
	return text
}

// only returns the one asynchronous error, or quiet.
func only(t *testing.T, codes []via.AsyncCode) via.AsyncCode {
	t.Helper()
	switch len(codes) {
	case 0:
		return quiet
	case 1:
		return codes[0]
	}
	t.Errorf("asynchronous errors %v, want one at most", codes)
	return codes[0]
}

// Chances strike in every link, and alike in two runs.
func TestFaultsOfChanceAreRepeatable(t *testing.T) {
	run := func(seed uint64) string {
		net := loopback.New()
		p := hook.Fault(net, hook.Plan{Seed: seed, Chances: map[via.Fault]float64{
			via.FaultDrop: 0.2, via.FaultDuplicate: 0.1, via.FaultCorrupt: 0.2, via.FaultTruncate: 0.1,
		}})
		a, b := newStationAt(t, p, via.UnreliableDelivery), newStationAt(t, p, via.UnreliableDelivery)
		for range 50 {
			a.post(t, via.OpRecv, 8, nil, 0)
			b.post(t, via.OpRecv, 8, nil, 0)
		}
		if err := meet(t, a, b); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			a.post(t, via.OpSend, 8, nil, uint32(i+1))
			b.post(t, via.OpSend, 8, nil, uint32(i+1))
		}
		a.poll()
		b.poll()
		first, second := received(a), received(b)
		if first == second {
			t.Errorf("seed %d: both links misbehave alike", seed)
		}
		return first + " " + second + fmt.Sprint(p.Injected())
	}
	once := run(1)
	if again := run(1); again != once {
		t.Errorf("one seed gives %s, then %s", once, again)
	}
	if other := run(2); other == once {
		t.Errorf("two seeds give the same, %s", once)
	}
}

// received is what came of the receives, with the sends taken out.
func received(s *station) string {
	text := ""
	for _, c := range s.done {
		if c.Recv {
			text += initials([]via.Completion{c}) + fmt.Sprint(c.Immediate)
		}
	}
	return text
}
