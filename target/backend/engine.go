package backend

import (
	"fmt"

	"github.com/viablk/viablk/target/backend/uring"
)

// The values of the option io: the waiter for the disk's reads and writes.
const (
	ioAuto    = "auto"    // the kernel where it can be had and that is faster
	ioUring   = "uring"   // the kernel
	ioThreads = "threads" // threads of the executor
)

// parseEngine reads the option io.
func parseEngine(q query) (string, error) {
	if !q.values.Has("io") {
		return ioAuto, nil
	}
	switch engine := q.values.Get("io"); engine {
	case ioAuto, ioUring, ioThreads:
		return engine, nil
	default:
		return "", fmt.Errorf("%w: option io of %s: is %q: there are %s, %s and %s",
			ErrUsage, q.scheme, engine, ioAuto, ioUring, ioThreads)
	}
}

// chooseEngine decides whether queues have rings. probe says why there are
// none.
func (f *file) chooseEngine(engine string, probe func() error) error {
	if engine != ioAuto && engine != ioUring {
		return nil
	}
	err := probe()
	if err != nil && engine == ioUring {
		return fmt.Errorf("backing file %q with io=uring: %w: leave io out, or say io=threads", f.path, err)
	}
	if err == nil {
		f.openRing = func(fd, depth int) (ring, error) { return uring.New(fd, depth) }
	}
	return nil
}
