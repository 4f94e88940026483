package nbd

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// agedReservation keeps what a connection tells of its requests in the disk.
type agedReservation struct {
	mu   sync.Mutex
	told []time.Time
}

func (*agedReservation) BeforeWrite() error { return nil }
func (*agedReservation) ReadOnly() bool     { return false }
func (*agedReservation) Release()           {}

func (a *agedReservation) InDisk(since time.Time) {
	a.mu.Lock()
	a.told = append(a.told, since)
	a.mu.Unlock()
}

// await waits until so much was told, and returns it.
func (a *agedReservation) await(n int) []time.Time {
	for {
		a.mu.Lock()
		told := a.told
		a.mu.Unlock()
		if len(told) >= n {
			return told
		}
		time.Sleep(time.Millisecond)
	}
}

// TestAgeOfRequests: a connection tells since when a request has been in the
// disk while the disk does not answer, again as long as it stays, also when
// others came meanwhile, and when none is there any more.
func TestAgeOfRequests(t *testing.T) {
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	var a agedReservation
	f := serve(t, Limits{}, Export{Name: "disk", Device: m, Reserve: func(string, bool, func(string)) (Reservation, error) {
		return &a, nil
	}})
	p := f.connectExport("disk", simple)
	asked := time.Now()
	p.put(p.request(0, cmdRead, 1, 0, 512))
	first := a.await(1)[0]
	if noticed := time.Now(); first.Before(asked) || first.After(noticed) {
		t.Errorf("a request of %v, noticed at %v, is in the disk since %v", asked, noticed, first)
	}
	p.put(p.request(0, cmdRead, 2, 0, 512))
	if second := a.await(2)[1]; second.Before(asked) || second.After(first) {
		t.Errorf("the oldest request is in the disk since %v, and was since %v", second, first)
	}
	close(m.hold)
	for range 2 {
		p.get(simpleReplySize + 512)
	}
	told := a.await(3)
	if last := told[len(told)-1]; !last.IsZero() {
		t.Errorf("the disk has answered, and a request is there since %v", last)
	}
	p.disconnect()
}

// TestAgeOfTheOldestThatIsLeft: soon after the oldest request is answered, the
// connection tells since when the next one has been in the disk, and otherwise
// does not look for it.
func TestAgeOfTheOldestThatIsLeft(t *testing.T) {
	var a agedReservation
	q := &memoryQueue{m: newMemory(1 << 20), depth: 3}
	x := transmission{reservation: &a, epoch: time.Now(), queue: q, requests: requestTable{depth: 3}, finished: new([64]*block.Request)}
	x.in.abandoned = true // answers need no client
	give := func(at time.Duration) *entry {
		s := x.requests.acquire()
		s.given, s.inQueue = at, true
		x.inQueue++
		return s
	}
	answer := func(s *entry) {
		s.req.Err = syscall.ECANCELED
		q.finished = append(q.finished, &s.req)
		x.reap()
	}
	const ms = time.Millisecond
	first := give(1 * ms)
	x.tellAge(1*ms, 1*ms) // as startAge does
	second := give(5 * ms)
	x.tendAge(300 * ms) // the first one is there still
	answer(first)
	if x.age.interval() != wrongAgeInterval {
		t.Errorf("the oldest request is answered, and what was told stands for %v", x.age.interval())
	}
	x.tendAge(301 * ms)
	answer(give(302 * ms)) // younger
	if x.age.interval() != ageInterval {
		t.Errorf("a younger request is answered, and what was told stands for %v", x.age.interval())
	}
	answer(second)
	x.tendAge(303 * ms)
	var told []time.Duration
	for _, at := range a.told {
		if at.IsZero() {
			at = x.epoch
		}
		told = append(told, at.Sub(x.epoch))
	}
	if want := []time.Duration{1 * ms, 5 * ms, 0}; !slices.Equal(told, want) {
		t.Errorf("requests are in the disk since %v, not %v", told, want)
	}
}

// polledMemory has queues that are polled: a loop does not sleep while requests
// are in them.
type polledMemory struct{ *memory }

type polledQueue struct{ block.Queue }

func (m polledMemory) NewQueue(depth int) (block.Queue, error) {
	q, err := m.memory.NewQueue(depth)
	return polledQueue{q}, err
}

func (q polledQueue) Arm() (time.Duration, bool) {
	_, _ = q.Queue.Arm()
	return 0, false
}

// TestAgeWithoutSleep: a connection that does not sleep tells it too.
func TestAgeWithoutSleep(t *testing.T) {
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	var a agedReservation
	f := serve(t, Limits{}, Export{Name: "disk", Device: polledMemory{m}, Reserve: func(string, bool, func(string)) (Reservation, error) {
		return &a, nil
	}})
	p := f.connectExport("disk", simple)
	p.put(p.request(0, cmdRead, 1, 0, 512))
	a.await(1)
	close(m.hold)
	p.get(simpleReplySize + 512)
	if told := a.await(2); !told[1].IsZero() {
		t.Errorf("the disk has answered, and a request is there since %v", told[1])
	}
	p.disconnect()
}
