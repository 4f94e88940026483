package target_test

import (
	"encoding/hex"
	"slices"
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// guestbook is a device that notes for whom its queues are opened.
type guestbook struct {
	block.Device
	mu     sync.Mutex
	guests []string
}

func (g *guestbook) NewQueueFor(client string, depth int) (block.Queue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guests = append(g.guests, client)
	return g.NewQueue(depth)
}

// All connections of a session are one client's, whatever they are used for.
func TestDeviceIsToldWhichSessionComes(t *testing.T) {
	g := &guestbook{Device: openDevice(t, "memory:16MiB")}
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
