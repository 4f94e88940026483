package backend

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// used returns a disk whose checksums are in use, and closed.
func usedSums(t testing.TB, size int64) *sumsBed {
	t.Helper()
	b := newSumsBed(t, size)
	d := b.open()
	disk := viewOf(t, d)
	if _, err := disk.WriteAt(fill(int(size), 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	b.close(d)
	return b
}

// wantRefusal wants a disk not to be opened, by an error that says what to do.
func (b *sumsBed) wantRefusal(options Options, is error, says string) {
	b.t.Helper()
	d, err := Open(b.spec(""), options)
	if err == nil {
		b.close(d)
	}
	if !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
		b.t.Errorf("opened with %v; want %v that says %q", err, is, says)
	}
}

// Checksums that do not fit their disk, or are in use, are refused with what to
// do.
func TestChecksumsAreRefused(t *testing.T) {
	const size = 1 << 20
	b := usedSums(t, size)
	other := usedSums(t, size)
	foreign := &sumsBed{t, b.path, other.sums}
	foreign.wantRefusal(Options{}, ErrUsage, "those of another disk")

	d := b.open()
	(&sumsBed{t, other.path, b.sums}).wantRefusal(Options{}, ErrLocked, "stop the other process")
	b.close(d)
	d = b.open()
	b.close(d)

	plain := mustOpen(t, "file:"+b.path, Options{})
	if _, err := block.IdentityOf(plain).SetWriter([16]byte{1}); err != nil {
		t.Fatal(err)
	}
	b.close(plain)
	b.wantRefusal(Options{}, ErrUsage, "was written to without them")
	if err := os.Remove(b.sums); err != nil {
		t.Fatal(err)
	}
	b.wantRefusal(Options{ReadOnly: true}, fs.ErrNotExist, "serve the disk for writing once")
	b.close(b.open())

	// A writer who keeps the sums is expected.
	d = b.open()
	if _, err := block.IdentityOf(d).SetWriter([16]byte{2}); err != nil {
		t.Fatal(err)
	}
	killSums(t, d)
	b.close(b.open())

	damaged := usedSums(t, size)
	for _, at := range []int64{600, 4096 + 600} {
		flip(t, damaged.sums, at)
	}
	damaged.wantRefusal(Options{}, checksum.ErrDamaged, "remove the file for new ones")
	if err := os.Truncate(other.sums, 4096); err != nil {
		t.Fatal(err)
	}
	other.wantRefusal(Options{}, ErrUsage, "a path where nothing is")
	large, err := block.Adjust(mustOpen(t, "memory:1M", Options{}), block.Adjustments{MinimumBlock: 8192})
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if _, err := openCrc(large, b.sums, fileOptions{}, linux{}); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "blocks have 8192 bytes") {
		t.Errorf("a disk with large blocks: %v", err)
	}
	for spec, says := range map[string]string{
		"crc:file:/a":           "write crc:DISK,SUMS",
		"crc:,/sums":            "write crc:DISK,SUMS",
		"crc:file:/a,":          "write crc:DISK,SUMS",
		"crc:file:/a,/b?x=1":    `no option "x"`,
		"crc:tape:1,/b":         "unknown kind of disk",
		"crc:file:/a,/b?lock=7": "not 0 or 1",
	} {
		if _, err := Parse(spec, nil); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q): %v; want %q", spec, err, says)
		}
	}
}

// A page of sums that is damaged is no corruption of the disk: its blocks are
// read, and a line of the log says that they are not checked.
func TestDamagedPageOfChecksums(t *testing.T) {
	b := usedSums(t, 1<<20)
	flip(t, b.sums, checksum.SumsAt(0)+100)
	var log bytes.Buffer
	d := mustOpen(t, b.spec(""), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := readAll(t, d); !bytes.Equal(got, fill(1<<20, 1)) {
		t.Error("the disk differs")
	}
	b.close(d)
	if !strings.Contains(log.String(), "event=checksums_lost") {
		t.Errorf("the log says: %s", log.String())
	}
}

// A disk grows and shrinks between its openings: blocks of before stay checked,
// new ones are not until they are written.
func TestChecksumsOfAResizedDisk(t *testing.T) {
	const small, large = 5<<20 + 512, 14 << 20
	b := usedSums(t, small)
	resize := func(size int64) {
		t.Helper()
		st, err := os.Stat(b.path)
		if err == nil {
			err = os.Truncate(b.path, size)
		}
		if err == nil {
			err = os.Chtimes(b.path, st.ModTime(), st.ModTime()) // as of a volume that has grown
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		resize(large)
		d := b.open()
		if got := readAll(t, d); !bytes.Equal(got[:small], fill(small, 1)) || len(got) != large {
			t.Error("the disk differs after it has grown")
		}
		disk := viewOf(t, d)
		if _, err := disk.WriteAt(fill(large-small, 2), small); err != nil {
			t.Fatal(err)
		}
		flip(t, b.path, 4096)
		_, err := disk.ReadAt(make([]byte, 4096), 4096)
		wantErrno(t, "read of a corrupt block", err, unix.EIO)
		flip(t, b.path, 4096)
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		b.close(d)
		resize(small)
		b.wantRefusal(Options{ReadOnly: true}, ErrUsage, "instead of")
		d = b.open()
		if got := readAll(t, d); !bytes.Equal(got, fill(small, 1)) {
			t.Error("the disk differs after it has shrunk")
		}
		b.close(d)
	}
}

// A disk in memory is another one in each process.
func TestChecksumsOfADiskInMemory(t *testing.T) {
	spec := "crc:memory:1M," + filepath.Join(t.TempDir(), "sums")
	for range 2 {
		d := mustOpen(t, spec, Options{})
		if got := readAll(t, d); !bytes.Equal(got, make([]byte, 1<<20)) {
			t.Error("the disk is not empty")
		}
		if _, err := viewOf(t, d).WriteAt(fill(8192, 7), 512); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
