package nbd

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// A panic in a device ends one connection.
func TestDevicePanics(t *testing.T) {
	m, sound := newMemory(1<<20), newMemory(1<<20)
	m.failWith(func(*block.Request) error { panic("broken device") })
	f := serve(t, Limits{}, Export{Name: "sound", Device: sound}, Export{Name: "broken", Device: m})
	p := f.connectExport("broken", simple)
	p.put(p.request(0, cmdFlush, 1, 0, 0))
	p.wantEnd()
	f.connectExport("sound", simple).wantAlive()
	if n := f.server.Status().Panics; n != 1 {
		t.Errorf("%d panics", n)
	}
}

// panickyInfo is a device that panics when it is described or opened.
type panickyInfo struct {
	*memory
	info, queue atomic.Bool
}

func (d *panickyInfo) Info() block.Info {
	if d.info.Load() {
		panic("broken info")
	}
	return d.memory.Info()
}

func (d *panickyInfo) NewQueue(depth int) (block.Queue, error) {
	if d.queue.Load() {
		panic("broken queue")
	}
	return d.memory.NewQueue(depth)
}

// oneWriter is the reservation of a disk that has one client.
type oneWriter struct{ taken *atomic.Bool }

func (oneWriter) BeforeWrite() error { return nil }
func (oneWriter) ReadOnly() bool     { return false }
func (oneWriter) InDisk(time.Time)   {}
func (o oneWriter) Release()         { o.taken.Store(false) }

// A panic of the device while a client opens its export leaves nothing taken.
func TestDevicePanicsInOpen(t *testing.T) {
	d := &panickyInfo{memory: newMemory(1 << 20)}
	var taken atomic.Bool
	f := serve(t, Limits{}, Export{Name: "disk", Device: d, Connections: 1, Reserve: func(string, bool, func(string)) (Reservation, error) {
		if taken.Swap(true) {
			return nil, errors.New("taken")
		}
		return oneWriter{&taken}, nil
	}})
	for _, panics := range []*atomic.Bool{&d.info, &d.queue} {
		panics.Store(true)
		p := f.dial()
		p.greet(bothFlags)
		p.option(optGo, nbdtest.GoData("disk"))
		p.wantEnd()
		panics.Store(false)
		f.connectExport("disk", simple).disconnect()
		for len(f.server.Status().Connections) != 0 || taken.Load() {
			time.Sleep(time.Millisecond)
		}
	}
}
