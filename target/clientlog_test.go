package target_test

import (
	"encoding/hex"
	"slices"
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// clientLog is a device that notes for whom its queues are opened.
type clientLog struct {
	block.Device
	mu     sync.Mutex
	guests []string
}

func (g *clientLog) NewQueueFor(client string, depth int) (block.Queue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guests = append(g.guests, client)
	return g.NewQueue(depth)
}

// All sessions of another host are one client's: it has no larger share for
// having many.
func TestDeviceIsToldWhichHostComes(t *testing.T) {
	g := &clientLog{Device: openDevice(t, "memory:16MiB")}
	r, o := newOriginRig(t, target.Config{}, target.Export{Name: "disk", Device: g})
	before := r.state()
	for range 2 {
		s := r.attach(t, "disk")
		must(t, s.writeInline(0, make([]byte, 512)))
		must(t, s.close())
		r.reaches(before) // the disk has one writer
	}
	o.from("2001:db8::7")
	s := r.attach(t, "disk")
	must(t, s.writeInline(0, make([]byte, 512)))
	must(t, s.close())
	g.mu.Lock()
	defer g.mu.Unlock()
	if want := []string{"host 192.0.2.1", "host 192.0.2.1", "host 2001:db8::/64"}; !slices.Equal(g.guests, want) {
		t.Errorf("the clients are %q, not %q", g.guests, want)
	}
}

// All connections of a session are one client's, whatever they are used for.
func TestDeviceIsToldWhichSessionComes(t *testing.T) {
	g := &clientLog{Device: openDevice(t, "memory:16MiB")}
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: g})
	s := r.attach(t, "disk")
	must(t, s.writeInline(0, make([]byte, 512)))
	second := r.join(t, s, 2)
	first := s.io
	s.io = second
	_, err := s.readInline(0, 512)
	must(t, err)
	must(t, second.close())
	s.io = first
	must(t, s.close())
	g.mu.Lock()
	defer g.mu.Unlock()
	name := "session " + hex.EncodeToString(s.id[:])
	if want := []string{name, name}; !slices.Equal(g.guests, want) {
		t.Errorf("the guests are %q, not %q", g.guests, want)
	}
}
