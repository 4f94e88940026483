package backend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
)

// guarded is a disk whose ranges a test takes away.
type guarded interface {
	block.Device
	guard(*block.Ranges)
}

// useZones has callers use the zones of a disk at the same time, each so many
// times, and returns the first thing that is wrong.
func useZones(d block.Device, times int) error {
	disk, err := block.NewDisk(d)
	if err != nil {
		return err
	}
	defer disk.Close()
	z := backendtest.NewZones(d.Info())
	use := func(a backendtest.Access) error {
		p := make([]byte, a.Length)
		z.Begin(&a, p)
		var err error
		if a.Write {
			_, err = disk.WriteAt(p, a.Offset)
		} else {
			_, err = disk.ReadAt(p, a.Offset)
		}
		return errors.Join(err, z.End(&a, p))
	}
	for _, a := range z.First() {
		if err := use(a); err != nil {
			return err
		}
	}
	var wrong atomic.Pointer[error]
	var callers sync.WaitGroup
	for seed := range uint64(4) {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(seed, 13))
			for n := 0; n < times && wrong.Load() == nil; n++ {
				if err := use(z.Next(random, true)); err != nil {
					wrong.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	callers.Wait()
	if err := wrong.Load(); err != nil {
		return *err
	}
	return z.Check()
}

// splitting is a kernel that lets others in between the halves of a page.
type splitting struct{ linux }

const halfPage = 2048 // bytes

func (h splitting) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	return inHalves(p, off, func(p []byte, off int64) (int, error) { return h.linux.pread(fd, p, off, noWait) })
}

func (h splitting) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	return inHalves(p, off, func(p []byte, off int64) (int, error) { return h.linux.pwrite(fd, p, off, dsync) })
}

func inHalves(p []byte, off int64, move func([]byte, int64) (int, error)) (sum int, err error) {
	for sum < len(p) {
		n, err := move(p[sum:min(sum+halfPage, len(p))], off+int64(sum))
		if err != nil || n <= 0 {
			if sum > 0 {
				return sum, nil
			}
			return n, err
		}
		sum += n
		runtime.Gosched()
	}
	return sum, nil
}

// TestRangesKeepBlocksWhole, and without them they are torn: what the kit's
// case Atomic looks for is there to be found.
func TestRangesKeepBlocksWhole(t *testing.T) {
	disks := map[string]func(testing.TB) guarded{
		"memory": func(t testing.TB) guarded {
			return mustOpen(t, fmt.Sprintf("memory:%d", diskSize), Options{}).(guarded)
		},
		"file": func(t testing.TB) guarded {
			d, err := openFile(newFile(t, diskSize), fileOptions{}, splitting{})
			if err != nil {
				t.Fatal(err)
			}
			return d.(guarded)
		},
	}
	for name, open := range disks {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			defer d.Close()
			if err := useZones(d, 200); err != nil {
				t.Errorf("with ranges: %v", err)
			}
			d.guard(nil)
			err := useZones(d, 20_000)
			if err == nil {
				t.Fatal("nothing is torn without ranges: the zones find nothing")
			}
			t.Log("without ranges:", err)
		})
	}
}
