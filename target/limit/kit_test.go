package limit

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/backend/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a disk behind limits.
func open(t testing.TB, spec string, shared, each Rates) *Export {
	t.Helper()
	disk, err := backend.Open(spec, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewExport(disk, shared, each)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// slow opens a disk that begins four requests a second.
func slow(t testing.TB) block.Device {
	return owned{open(t, "memory:16M", Rates{Requests: 4, Burst: time.Nanosecond}, Rates{}).Session()}
}

// owned is a session that closes its export.
type owned struct{ *Session }

func (o owned) Close() error { return o.export.Close() }

func TestKit(t *testing.T) {
	tight := Rates{Requests: 100_000, Bytes: 2 << 30, Burst: time.Millisecond}
	for name, c := range map[string]struct {
		spec         string
		shared, each Rates
	}{
		"export":  {"memory:16M", tight, Rates{}},
		"session": {"delay:any=10us:memory:16M", Rates{}, tight},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t testing.TB) block.Device {
				return owned{open(t, c.spec, c.shared, c.each).Session()}
			}, backendtest.Options{Slow: slow})
		})
	}
	t.Run("client", func(t *testing.T) {
		backendtest.Run(t, func(t testing.TB) block.Device {
			return named{open(t, "memory:16M", tight, tight)}
		}, backendtest.Options{})
	})
}

// named is an export whose queues are all one client's.
type named struct{ *Export }

func (n named) NewQueue(depth int) (block.Queue, error) { return n.NewQueueFor("client", depth) }
