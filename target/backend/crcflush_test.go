package backend

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// syncFailing fails the syncs of one file.
type syncFailing struct {
	lossy
	path string
}

// is reports whether a descriptor is that of the file.
func (s *syncFailing) is(fd int) bool {
	var a, b unix.Stat_t
	return unix.Fstat(fd, &a) == nil && unix.Stat(s.path, &b) == nil && a.Ino == b.Ino
}

func (s *syncFailing) fdatasync(fd int) error {
	if s.is(fd) {
		return s.lossy.fdatasync(fd)
	}
	return s.linux.fdatasync(fd)
}

func (s *syncFailing) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	if dsync && s.is(fd) && s.failing.Load() {
		return 0, unix.EIO
	}
	return s.linux.pwrite(fd, p, off, dsync)
}

// A failed sync, of the disk or of its sums, fails the flush and each later
// one. The next process sums the regions that were written to.
func TestChecksumsAfterFailedFlush(t *testing.T) {
	for _, fails := range []string{"disk", "disk.sums"} {
		for _, durable := range []bool{false, true} {
			b := usedSums(t, 9<<20)
			k := &syncFailing{path: filepath.Join(filepath.Dir(b.path), fails)}
			d := b.openOn(k)
			disk := viewOf(t, d)
			if _, err := disk.WriteAt(fill(4096, 2), 8192); err != nil {
				t.Fatal(err)
			}
			k.failing.Store(true)
			var err error
			if durable {
				_, err = disk.WriteAtFUA(fill(4096, 3), 8192)
			} else {
				err = disk.Sync()
			}
			wantErrno(t, fails+": flush", err, unix.EIO)
			k.failing.Store(false)
			wantErrno(t, fails+": the next flush", disk.Sync(), unix.EIO)
			_, err = disk.WriteAtFUA(fill(4096, 3), 8192)
			wantErrno(t, fails+": the next durable write", err, unix.EIO)
			_, err = disk.ReadAt(make([]byte, 16384), 0)
			wantErrno(t, fails+": read", err, 0)
			if err := disk.Close(); err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); !errors.Is(err, unix.EIO) {
				t.Errorf("%s: closed with %v", fails, err)
			}
			acceptLosses(t, b.path)
			var log bytes.Buffer
			again := mustOpen(t, b.spec(""), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			readAll(t, again)
			b.close(again)
			if !strings.Contains(log.String(), "event=checksums_renewed") {
				t.Errorf("%s: the log says: %s", fails, log.String())
			}
		}
	}
}

// A write that fails leaves its blocks without sums, and its region marked.
func TestChecksumsAfterFailedWrite(t *testing.T) {
	path := newFile(t, 1<<20)
	spec := "crc:fault:write=EIO@3:file:" + path + "," + path + ".sums"
	d := mustOpen(t, spec, Options{}).(*crc)
	disk := viewOf(t, d)
	failed := false
	for i := range 6 {
		_, err := disk.WriteAt(fill(4096, byte(i)), 4096)
		failed = failed || err != nil
		if err != nil {
			flip(t, path, 4096) // what is there is not known
			_, err = disk.ReadAt(make([]byte, 4096), 4096)
			wantErrno(t, "read after a write that failed", err, 0)
		}
	}
	if !failed {
		t.Fatal("no write failed")
	}
	d.idle = -time.Second
	for range 2 {
		if err := disk.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if !d.intent.Marked(0) {
		t.Error("the region has no mark")
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// amidFlush is a kernel that calls f when the disk, and not yet its sums, is
// durable.
type amidFlush struct {
	syncFailing
	f atomic.Pointer[func()]
}

func (a *amidFlush) fdatasync(fd int) error {
	err := a.linux.fdatasync(fd)
	if a.is(fd) {
		if f := a.f.Swap(nil); f != nil {
			(*f)()
		}
	}
	return err
}

// A write ends amid a flush, after that has made the disk durable, and the sums
// of the write become durable with those of another one: the mark of its region
// stays, for its data is not durable.
func TestWriteAmidFlushOfChecksums(t *testing.T) {
	b := newSumsBed(t, 40<<20)
	k := &amidFlush{syncFailing: syncFailing{path: b.path}}
	c := b.openOn(k)
	c.idle = 0
	disk := viewOf(t, c)
	write := func(write func([]byte, int64) (int, error), off int64) {
		if _, err := write(fill(4096, 1), off); err != nil {
			t.Error(err)
		}
	}
	write(disk.WriteAt, 0)
	amid := func() {
		write(disk.WriteAt, 4096)
		write(disk.WriteAtFUA, 30<<20)
	}
	k.f.Store(&amid)
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	if k.f.Load() != nil || !c.intent.Marked(0) {
		t.Error("the mark of a region is gone whose data is not durable")
	}
	for range 2 {
		if err := disk.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if c.intent.Marked(0) {
		t.Error("the mark stays after a flush")
	}
}
