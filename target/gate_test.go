package target_test

import (
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// gate is a disk whose requests wait until they are released.
type gate struct {
	*block.Executor
	info block.Info

	pass    chan struct{} // closed: everything passes
	started chan int64    // offset of each request that reached the disk

	mu    sync.Mutex
	bytes []byte
}

func newGate(minimum uint32, size int) *gate {
	g := &gate{
		info: block.Info{
			Size: int64(size), MinimumBlock: minimum, PreferredBlock: max(minimum, 4096), MaximumPayload: block.PayloadLimit,
			Features: block.CanFlush | block.CanFUA | block.CanTrim | block.CanWriteZeroes | block.CanMultiConn,
		},
		bytes: make([]byte, size), pass: make(chan struct{}), started: make(chan int64, 4096),
	}
	g.Executor = block.NewExecutor(g, 0)
	return g
}

func (g *gate) Info() block.Info { return g.info }

func (g *gate) NewQueue(depth int) (block.Queue, error) {
	return g.Executor.NewQueue(depth, block.PayloadLimit)
}

func (g *gate) Close() error {
	g.Executor.Close()
	return nil
}

func (g *gate) Attempt(*block.Request) bool { return false }

func (g *gate) Execute(r *block.Request) error {
	g.started <- r.Offset
	<-g.pass
	g.mu.Lock()
	defer g.mu.Unlock()
	switch r.Op {
	case block.Read:
		copy(r.Data, g.bytes[r.Offset:])
	case block.Write:
		copy(g.bytes[r.Offset:], r.Data)
	}
	return nil
}

// attachMode is attach in another mode.
func (r *rig) attachMode(t testing.TB, export string, mode wire.OpenMode) *session {
	t.Helper()
	s := &session{id: newID(), control: r.peer(t)}
	must(t, s.control.login(s.control.loginRequest(wire.RoleControl, s.id, 0)))
	must(t, s.open(1, export, mode, &s.export))
	s.io = r.join(t, s, 1)
	return s
}
