package nbd

import (
	"sync"
	"testing"
	"time"
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
