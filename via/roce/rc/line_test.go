package rc

import (
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

const (
	testTrip = 100 * time.Microsecond // of a fast line
	longTrip = testTrip + 3*maxLineQueueing
)

// lineAt is a line with its time.
type lineAt struct {
	*Line
	now time.Duration
}

// size and held return the packets that may be in flight, and that are.
func (l *lineAt) size() int { return int(l.window.Load()) }
func (l *lineAt) held() int { return int(l.inFlight.Load()) }

// demand has a QP find no room, after enough packets for the window to grow.
func (l *lineAt) demand() {
	l.add(lineProbe)
	l.add(-lineProbe)
	l.acquireTicket()
	l.releaseTicket()
}

// trip measures a round trip that begins now.
func (l *lineAt) trip(d time.Duration) {
	l.now += d
	l.measured(d, l.now)
}

func newLineAt() *lineAt {
	l := &lineAt{NewLine(), time.Second}
	l.trip(testTrip)
	return l
}

// TestLineGrowsWithDemand: the window doubles with each short round trip in
// which it was the limit, and with no other. Once it is not used it is as small
// as at first.
func TestLineGrowsWithDemand(t *testing.T) {
	l := newLineAt()
	l.trip(testTrip)
	if w := l.size(); w != firstLineWindow {
		t.Errorf("without demand the window is %d", w)
	}
	for n := range 5 {
		l.demand()
		l.trip(testTrip)
		l.trip(testTrip)
		if w := l.size(); w != firstLineWindow<<(n+1) {
			t.Fatalf("after %d round trips with demand the window is %d", n+1, w)
		}
	}
	l.add(firstLineWindow)
	l.add(-firstLineWindow)
	for end := l.now + 3*lineReview; l.now < end; {
		l.trip(time.Millisecond)
	}
	if w := l.size(); w != firstLineWindow {
		t.Errorf("unused, the window is %d", w)
	}
}

// TestLineShrinksToOnePacket: long round trips shrink the window to one packet,
// once for each packet that was sent since, and short ones let it grow again.
func TestLineShrinksToOnePacket(t *testing.T) {
	l := newLineAt()
	l.add(firstLineWindow)
	l.trip(longTrip)
	w := l.size()
	if w >= firstLineWindow || w < firstLineWindow/2 {
		t.Errorf("the window is %d after a long round trip", w)
	}
	for range 10 {
		l.measured(longTrip, l.now+time.Millisecond) // sent before
	}
	if l.size() != w {
		t.Errorf("the window is %d, and was %d", l.size(), w)
	}
	for range 10 {
		l.trip(longTrip)
	}
	if l.size() != 1 || l.room() != 1-firstLineWindow {
		t.Errorf("the window is %d after many", l.size())
	}
	for range 10 {
		l.demand()
		l.trip(testTrip)
	}
	if l.size() < firstLineWindow/2 {
		t.Errorf("the window is %d after short round trips", l.size())
	}
}

// TestPeerDelaysAnswers: a peer that takes its time slows no other peer of its
// host, as round trips of others are short meanwhile, and gains no time.
func TestPeerDelaysAnswers(t *testing.T) {
	l := newLineAt()
	l.add(firstLineWindow)
	for range 1000 {
		l.trip(testTrip)
		l.measured(longTrip, l.now)
	}
	if l.size() != firstLineWindow || l.slowest() > 10*testTrip || l.AnswerTime() > 10*testTrip {
		t.Errorf("window %d, an answer takes %v", l.size(), l.AnswerTime())
	}
}

// TestAnswerTime: the slowest round trips of late say how long an answer takes,
// but not a single one.
func TestAnswerTime(t *testing.T) {
	l := newLineAt()
	l.trip(longTrip)
	if once := l.AnswerTime(); once > 10*testTrip {
		t.Errorf("after one long round trip an answer takes %v", once)
	}
	for range 20 {
		l.trip(longTrip)
	}
	if slow := l.AnswerTime(); slow < longTrip || slow > 3*longTrip {
		t.Errorf("an answer takes %v, a round trip %v", slow, longTrip)
	}
	for end := l.now + 30*time.Second; l.now < end; {
		l.trip(testTrip)
	}
	if again := l.AnswerTime(); again > 10*testTrip {
		t.Errorf("on a line that is fast again an answer takes %v", again)
	}
}

// TestShortestRoundTripOfBusyLine: on a line that is always busy each round
// trip waits in a queue. When the shortest one is old, the window is one packet
// until a new one is known.
func TestShortestRoundTripOfBusyLine(t *testing.T) {
	l := newLineAt()
	l.add(firstLineWindow)
	const base = 50 * time.Millisecond // of a longer way
	queue := func() time.Duration { return time.Duration(l.size()) * 8 * time.Millisecond }
	drained := false
	for end := l.now + 3*minRTTAge; l.now < end; {
		l.demand()
		l.trip(base + queue())
		l.mu.Lock()
		drained = drained || l.drain.until != 0
		l.mu.Unlock()
	}
	l.mu.Lock()
	least := l.Line.least
	l.mu.Unlock()
	if !drained || least < base || least > base+2*queue() && least > base+20*time.Millisecond {
		t.Errorf("drained %v, the shortest round trip is %v", drained, least)
	}
	if l.size() == 1 {
		t.Error("the window stays one packet")
	}
}

// memoryOfTest is memory that nothing looks up.
type memoryOfTest struct{}

func (memoryOfTest) Remote(uint32, uint64, int, Access) []byte { return nil }
func (memoryOfTest) Local(uint64) bool                         { return true }

// A QP that is abandoned leaves its room, and its place among those that wait,
// to others.
func TestAbandonedQPLeavesLine(t *testing.T) {
	l := newLineAt()
	q, _ := writer(t, l, 2*firstLineWindow)
	waiting, b := writer(t, l, 2)
	if len(b.Packets()) != 0 || l.held() != firstLineWindow || l.before(0) != 1 {
		t.Fatalf("%d packets are sent, %d in flight, %d QPs wait", len(b.Packets()), l.held(), l.before(0))
	}
	waiting.Abandon()
	if n := l.before(0); n != 0 {
		t.Errorf("%d QPs wait without one that is abandoned", n)
	}
	q.Abandon()
	if n := l.held(); n != 0 || l.waiting() {
		t.Errorf("%d packets are in flight; a ticket is left: %v", n, l.waiting())
	}
	if _, b := writer(t, l, 2); len(b.Packets()) != 2 {
		t.Errorf("another QP sends %d packets", len(b.Packets()))
	}
}

// writer returns a QP on a line with a Write of so many packets, and emits.
func writer(t *testing.T, l *lineAt, packets int) (*QP, *Burst) {
	t.Helper()
	q, err := New(Config{
		PeerQP: 5, MTU: wire.MTU256, SendDepth: 1, ReceiveDepth: 1, Selective: true,
		Retries: 8, RNRRetries: foreverRNR, Line: l.Line,
	}, memoryOfTest{})
	if err != nil {
		t.Fatal(err)
	}
	q.Post(&Work{Op: Write, Segments: [][]byte{make([]byte, packets*256)}})
	b := NewBurst(128)
	q.Emit(b, l.now)
	return q, b
}

// TestSilentPeerLeavesRoom: what is in flight to a peer that does not answer
// counts only until the second timeout, and nothing of a broken QP does.
func TestSilentPeerLeavesRoom(t *testing.T) {
	l := newLineAt()
	q, b := writer(t, l, 2*firstLineWindow)
	if n := len(b.Packets()); n != firstLineWindow || l.held() != n {
		t.Fatalf("%d packets are sent, %d in flight", n, l.held())
	}
	other, b := writer(t, l, 2)
	if n := len(b.Packets()); n != 0 {
		t.Fatalf("another QP sends %d packets over a full line", n)
	}
	for q.Timeouts() < 2 {
		l.now, _ = q.Deadline()
		q.Timeout(l.now)
		b.Reset()
		q.Emit(b, l.now)
	}
	if n := l.held(); n != 0 {
		t.Errorf("%d packets are in flight to the silent peer", n)
	}
	b.Reset()
	other.Timeout(l.now)
	other.Emit(b, l.now)
	if n := len(b.Packets()); n != 1 {
		t.Errorf("the other QP sends %d packets", n)
	}
	q.Break()
	other.Break()
	if n := l.held(); n != 0 || l.waiting() {
		t.Errorf("%d packets of broken QPs are in flight; a ticket is left: %v", n, l.waiting())
	}
}

// TestIdleLineForgets: short round trips let a small window grow to the first,
// also if no QP needs it, so that a line of small messages does not stay slow.
func TestIdleLineForgets(t *testing.T) {
	l := newLineAt()
	l.now += time.Second
	l.timedOut(linePause, l.now)
	if !l.slow() {
		t.Fatal("the line is not slow")
	}
	for range 20 {
		l.trip(testTrip + samplePause)
	}
	if w := l.size(); w != firstLineWindow {
		t.Errorf("the window is %d", w)
	}
}

// TestTimeoutShrinksLine: after a pause without an answer the window is one
// packet, unless others had short round trips meanwhile, or the pause is that
// of a loss. It grows fast up to half of what it was, and no peer gains time to
// answer.
func TestTimeoutShrinksLine(t *testing.T) {
	l := newLineAt()
	l.now += time.Second
	l.timedOut(minLineQueueing/2, l.now)
	if w := l.size(); w != firstLineWindow {
		t.Errorf("the window is %d after a loss", w)
	}
	l.timedOut(maxLineQueueing, l.now)
	if w := l.size(); w != 1 || l.AnswerTime() != 0 {
		t.Fatalf("the window is %d after a timeout, and an answer takes %v", w, l.AnswerTime())
	}
	for _, want := range []int{2, 4, 8, 9, 10} {
		l.demand()
		l.trip(testTrip)
		if w := l.size(); w != want {
			t.Errorf("the window grows to %d, not %d", w, want)
		}
	}
	for end := l.now + 2*maxLineQueueing; l.now < end; {
		l.trip(time.Millisecond)
	}
	before := l.size()
	l.timedOut(maxLineQueueing, l.now)
	if w := l.size(); w != before {
		t.Errorf("the window is %d after the timeout of a peer while others answer", w)
	}
}

// TestWaitForRoom: an answer takes as long as a QP waits for room, but a wait
// in which no peer answers says nothing of the line: all may be gone.
func TestWaitForRoom(t *testing.T) {
	l := newLineAt()
	since, ticket := l.now, l.acquireTicket()
	for range 100 {
		l.now += 10 * time.Millisecond
		l.retry(ticket, since, l.now)
	}
	if d := l.AnswerTime(); d != 0 {
		t.Errorf("after a wait without answers one takes %v", d)
	}
	l.trip(testTrip)
	l.retry(ticket, since, l.now)
	if d := l.AnswerTime(); d != l.now-since {
		t.Errorf("after a wait of %v an answer takes %v", l.now-since, d)
	}
}

// TestTimeoutOfSlowLine: a QP retries for longer if the round trips of the line
// are longer, but not without end.
func TestTimeoutOfSlowLine(t *testing.T) {
	for _, c := range []struct{ trip, least, most time.Duration }{
		{testTrip, 4 * time.Second, 8 * time.Second},
		{time.Second, 8 * time.Second, 40 * time.Second},
		{time.Hour, 30 * time.Second, 60 * time.Second},
	} {
		l := newLineAt()
		for range 20 {
			l.trip(c.trip)
		}
		q, b := writer(t, l, 1)
		began := l.now
		for q.Cause() == OK {
			l.now, _ = q.Deadline()
			q.Timeout(l.now)
			b.Reset()
			q.Emit(b, l.now)
		}
		if d := l.now - began; q.Cause() != RetriesExceeded || d < c.least || d > c.most {
			t.Errorf("round trips of %v: %v after %v", c.trip, q.Cause(), d)
		}
	}
}
