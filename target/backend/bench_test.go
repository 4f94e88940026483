package backend

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// BenchmarkQueue measures a queue at depth 32 with memory of the queue. Of cow
// the overlay has all blocks.
func BenchmarkQueue(b *testing.B) {
	for _, kind := range []string{"null", "memory", "file", "cow"} {
		for _, op := range []block.Op{block.Read, block.Write} {
			for _, size := range []int64{4 << 10, 128 << 10} {
				b.Run(fmt.Sprintf("%s/%v/%dKiB", kind, op, size>>10), func(b *testing.B) {
					d := benchDisk(b, kind)
					defer d.Close()
					benchQueue(b, d, op, size)
				})
			}
		}
	}
}

// BenchmarkEngines measures the engines of files beside each other, on the file
// system of the temporary folder: past the page cache, and what rings cost
// where the page cache has everything.
func BenchmarkEngines(b *testing.B) {
	for _, size := range []int64{4 << 10, 128 << 10} {
		for _, engine := range []string{ioThreads, ioUring} {
			b.Run(fmt.Sprintf("cached/%dKiB/%s", size>>10, engine), func(b *testing.B) {
				d := benchDisk(b, "file", "io="+engine)
				defer d.Close()
				benchQueue(b, d, block.Read, size)
			})
		}
	}
	for _, op := range []block.Op{block.Read, block.Write} {
		for _, size := range []int64{4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20} {
			for _, engine := range []string{ioThreads, ioUring} {
				b.Run(fmt.Sprintf("%v/%dKiB/%s", op, size>>10, engine), func(b *testing.B) {
					d := benchDisk(b, "file", "direct=1&io="+engine)
					defer d.Close()
					benchQueue(b, d, op, size)
				})
			}
		}
	}
}

// BenchmarkChecksums measures disks with checksums beside those without, from
// and to the page cache and past it. cpu-ns is processor time of the process.
func BenchmarkChecksums(b *testing.B) {
	for _, options := range []string{"", "direct=1"} {
		for _, op := range []block.Op{block.Read, block.Write} {
			for _, size := range []int64{4 << 10, 128 << 10} {
				for _, kind := range []string{"file", "crc"} {
					b.Run(fmt.Sprintf("%s/%v/%dKiB/%s", options, op, size>>10, kind), func(b *testing.B) {
						d := benchDisk(b, kind, options)
						defer d.Close()
						began := processorTime(b)
						benchQueueAt(b, d, op, size, 16, benchOffset)
						b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
					})
				}
			}
		}
	}
}

// BenchmarkFirstWrites measures writes of 128 KiB in sequence, which mark the
// regions of a disk with checksums. With 4096 iterations each part is written
// once, and the disk has its blocks.
func BenchmarkFirstWrites(b *testing.B) {
	const size, length = 512 << 20, 128 << 10
	for _, kind := range []string{"file", "crc"} {
		b.Run(kind, func(b *testing.B) {
			path := newFile(b, size)
			if err := openDense(b, "file:"+path).Close(); err != nil {
				b.Fatal(err)
			}
			spec := "file:" + path
			if kind == "crc" {
				spec = "crc:" + spec + "," + path + ".sums"
			}
			d := mustOpen(b, spec, Options{})
			defer d.Close()
			benchQueueAt(b, d, block.Write, length, 16, func(i int64) int64 { return i * length % size })
		})
	}
}

// processorTime returns what the process has used, in ns.
func processorTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// benchDisk opens a disk of 64 MiB that has been written.
func benchDisk(b *testing.B, kind string, options ...string) block.Device {
	const size = 64 << 20
	spec := fmt.Sprintf("%s:%d", kind, size)
	switch kind {
	case "file":
		spec = "file:" + newFile(b, size) + "?" + strings.Join(options, "&")
	case "crc":
		spec = "crc:file:" + newFile(b, size) + "?" + strings.Join(options, "&") + "," + filepath.Join(b.TempDir(), "sums")
	case "cow":
		spec = "cow:" + newFile(b, size) + "," + filepath.Join(b.TempDir(), "overlay") + "?create=1"
	}
	d := mustOpen(b, spec, Options{})
	disk, err := block.NewDisk(d)
	if err != nil {
		b.Fatal(err)
	}
	defer disk.Close()
	for off := int64(0); off < size; off += 1 << 20 {
		if _, err := disk.WriteAt(fill(1<<20, 1), off); err != nil {
			b.Fatal(err)
		}
	}
	return d
}

// BenchmarkRandomWrite measures writes of 4 KiB at random: into a new sparse
// file of which they touch a part, or all, and into one that has all of its
// blocks. With a number of iterations up to 65536, each is of another block.
func BenchmarkRandomWrite(b *testing.B) {
	for _, options := range []string{"io=threads", "io=uring&direct=1"} {
		for _, c := range []struct {
			name string
			size int64
			open func(testing.TB, string) block.Device
		}{
			{"sparse", 4 << 30, openSparse}, {"fill", 256 << 20, openSparse}, {"dense", 256 << 20, openDense},
		} {
			b.Run(options+"/"+c.name, func(b *testing.B) {
				d := c.open(b, "file:"+newFile(b, c.size)+"?"+options)
				defer d.Close()
				const step = 40503 // odd: every block of a power of two comes once
				benchQueueAt(b, d, block.Write, 4096, benchDepth, func(i int64) int64 { return i * step * 4096 % c.size })
			})
		}
	}
}

func openSparse(t testing.TB, spec string) block.Device { return mustOpen(t, spec, Options{}) }

// openDense opens a disk that has been written by whom has it open.
func openDense(t testing.TB, spec string) block.Device {
	d := mustOpen(t, spec, Options{})
	disk, err := block.NewDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	p := aligned(t, 1<<20)
	for off := int64(0); off < d.Info().Size; off += 1 << 20 {
		if _, err := disk.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	return d
}

func benchQueue(b *testing.B, d block.Device, op block.Op, size int64) {
	benchQueueAt(b, d, op, size, benchDepth, benchOffset)
}

// benchDepth is the depth of most benchmarks.
const benchDepth = 32

// benchOffset spreads requests over the first half of a disk.
func benchOffset(i int64) int64 { return i * 7919 * 4096 % (32 << 20) }

// benchQueueAt measures a queue with memory of the queue; the offset of request
// i is at(i).
func benchQueueAt(b *testing.B, d block.Device, op block.Op, size int64, depth int, at func(i int64) int64) {
	q, err := d.NewQueue(depth)
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	requests := make([]block.Request, depth)
	free := make([]*block.Request, 0, depth)
	for i := range requests {
		free = append(free, &requests[i])
	}
	dst := make([]*block.Request, depth)
	fds := []unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}
	timeout := new(unix.Timespec)
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	for submitted, reaped := 0, 0; reaped < b.N; {
		for ; len(free) > 0 && submitted < b.N; submitted++ {
			r := free[len(free)-1]
			free = free[:len(free)-1]
			*r = block.Request{Op: op, Length: size, Offset: at(int64(submitted))}
			if !q.Reserve(r) || !q.Submit(r) {
				b.Fatal("refused")
			}
		}
		q.Kick()
		n := q.Reap(dst)
		for _, r := range dst[:n] {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			q.Release(r)
			free = append(free, r)
		}
		reaped += n
		if n == 0 {
			if d, ok := q.Arm(); ok && d >= 0 {
				*timeout = unix.NsecToTimespec(int64(d))
				_, _ = unix.Ppoll(fds, timeout, nil)
			} else if ok {
				_, _ = unix.Ppoll(fds, nil, nil)
			}
		}
	}
}

// BenchmarkWriteAt measures writes to a file one at a time, of a caller that
// waits.
func BenchmarkWriteAt(b *testing.B) {
	for _, size := range []int64{4 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			d := benchDisk(b, "file")
			defer d.Close()
			disk, err := block.NewDisk(d)
			if err != nil {
				b.Fatal(err)
			}
			defer disk.Close()
			p := fill(int(size), 2)
			b.SetBytes(size)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range int64(b.N) {
				if _, err := disk.WriteAt(p, i*7919*4096%(32<<20)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
