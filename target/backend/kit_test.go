package backend

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diskSize is the size of the disks of the kit: more than the longest payload.
const diskSize = block.PayloadLimit + 8<<20

// newFile makes a sparse file and returns its path.
func newFile(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t testing.TB, spec string, options Options) block.Device {
	t.Helper()
	d, err := Open(spec, options)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// onMemory returns an opener of wrappers around a disk in memory.
func onMemory(wrappers string) func(testing.TB) block.Device {
	return func(t testing.TB) block.Device {
		t.Helper()
		return mustOpen(t, fmt.Sprintf("%smemory:%d", wrappers, diskSize), Options{})
	}
}

// onFile returns an opener of wrappers around a new file.
func onFile(wrappers, options string) func(testing.TB) block.Device {
	return func(t testing.TB) block.Device {
		t.Helper()
		return mustOpen(t, fmt.Sprintf("%sfile:%s%s", wrappers, newFile(t, diskSize), options), Options{})
	}
}

func TestMemory(t *testing.T) {
	backendtest.Run(t, onMemory(""), backendtest.Options{Broken: onMemory("fault:write=EIO:")})
}

func TestNull(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) block.Device {
		return mustOpen(t, fmt.Sprintf("null:%d", diskSize), Options{})
	}, backendtest.Options{Forgets: true, Broken: onMemory("fault:write=EIO:")})
}

func TestReadOnlyMemory(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) block.Device {
		return mustOpen(t, fmt.Sprintf("memory:%d", diskSize), Options{ReadOnly: true})
	}, backendtest.Options{})
}

func TestFile(t *testing.T) {
	backendtest.Run(t, onFile("", ""), backendtest.Options{Broken: onFile("fault:write=EIO:", "")})
}

// The kit for each engine, by the page cache and past it.
func TestEngines(t *testing.T) {
	for _, options := range []string{"?io=uring", "?io=threads", "?io=uring&direct=1", "?io=threads&direct=1"} {
		t.Run(options, func(t *testing.T) {
			backendtest.Run(t, onFile("", options), backendtest.Options{Broken: onFile("fault:write=EIO:", options)})
		})
	}
}

// onMap returns an opener of wrappers around a new file that is mapped.
func onMap(wrappers, options string) func(testing.TB) block.Device {
	return func(t testing.TB) block.Device {
		t.Helper()
		return mustOpen(t, fmt.Sprintf("%smmap:%s%s", wrappers, newFile(t, diskSize), options), Options{})
	}
}

func TestMap(t *testing.T) {
	backendtest.Run(t, onMap("", ""), backendtest.Options{Broken: onMap("fault:write=EIO:", "")})
}

func TestReadOnlyMap(t *testing.T) {
	backendtest.Run(t, onMap("", "?readonly=1"), backendtest.Options{})
}

func TestReadOnlyFile(t *testing.T) {
	backendtest.Run(t, onFile("", "?readonly=1"), backendtest.Options{})
}

func TestDirectFile(t *testing.T) {
	backendtest.Run(t, onFile("", "?direct=1"), backendtest.Options{Broken: onFile("fault:write=EIO:", "?direct=1")})
}

func TestDelay(t *testing.T) {
	backendtest.Run(t, onMemory("delay:read=20us,write=100us:"), backendtest.Options{
		Broken: onMemory("delay:any=10us:fault:write=EIO:"),
	})
}

func TestFaultThatNeverMatches(t *testing.T) {
	backendtest.Run(t, onMemory("fault:any=EIO@0%:"), backendtest.Options{Broken: onMemory("fault:write=short:")})
}

func TestVolatile(t *testing.T) {
	seed := uint64(0)
	backendtest.Run(t, onMemory("volatile:"), backendtest.Options{
		Crash: func(t testing.TB, d block.Device) {
			seed++
			if err := d.(*Volatile).Crash(seed); err != nil {
				t.Fatal(err)
			}
		},
		Broken: onMemory("fault:write=EIO:volatile:"),
		Skip:   map[string]string{"Allocations": "the cache of the test tool is a map of sectors"},
	})
}
