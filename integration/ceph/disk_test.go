//go:build ceph && rbd && cgo

package ceph

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/backend/backendtest"
)

// capture returns options with a log that the test can read.
func capture() (backend.Options, *testbed.Capture) {
	text := new(testbed.Capture)
	return backend.Options{Log: slog.New(slog.NewTextHandler(text, nil))}, text
}

// open opens a disk. The caller closes it.
func open(t testing.TB, spec string) block.Device {
	t.Helper()
	d, err := backend.Open(spec, backend.Options{})
	testbed.Must(t, err)
	return d
}

// view returns the synchronous view of a disk, which ends with the test and
// before the disk is closed.
func view(t testing.TB, d block.Device) *block.Disk {
	t.Helper()
	v, err := block.NewDisk(d)
	testbed.Must(t, err)
	return v
}

// TestKit runs the conformance kit on an image, as it is and as a clone.
func TestKit(t *testing.T) {
	image := shared.image(t, "80M")
	shared.run(t, "rbd", "snap", "create", image+"@base")
	shared.run(t, "rbd", "snap", "protect", image+"@base")
	shared.run(t, "rbd", "clone", image+"@base", image+".clone")
	for name, image := range map[string]string{"image": image, "clone": image + ".clone"} {
		t.Run(name, func(t *testing.T) {
			kitOf := func(wrapper string) func(testing.TB) block.Device {
				return func(t testing.TB) block.Device { return open(t, wrapper+shared.spec(image)) }
			}
			backendtest.Run(t, kitOf(""), backendtest.Options{Broken: kitOf("fault:write=EIO:")})
		})
	}
}

// TestSnapshot: a snapshot is a read-only disk that passes the kit, is another
// disk than its image, and does not change with it.
func TestSnapshot(t *testing.T) {
	image := shared.image(t, "16M")
	d := open(t, shared.spec(image))
	v := view(t, d)
	was := bytes.Repeat([]byte("before"), 4096)
	_, err := v.WriteAt(was, 4<<20-100)
	testbed.Must(t, err)
	shared.run(t, "rbd", "snap", "create", image+"@s")
	_, err = v.WriteAt(bytes.Repeat([]byte{'x'}, len(was)), 4<<20-100)
	testbed.Must(t, err)
	testbed.Must(t, v.Close())

	s := open(t, shared.spec(image+"@s"))
	frozen := view(t, s)
	got := make([]byte, len(was))
	_, err = frozen.ReadAt(got, 4<<20-100)
	testbed.Must(t, err)
	if !bytes.Equal(got, was) {
		t.Error("the snapshot has changed")
	}
	if a, b := block.IdentityOf(d).UUID(), block.IdentityOf(s).UUID(); a == b {
		t.Errorf("image and snapshot are both %x", a)
	}
	testbed.Must(t, frozen.Close())
	testbed.Must(t, s.Close())
	testbed.Must(t, d.Close())
	backendtest.Run(t, func(t testing.TB) block.Device { return open(t, shared.spec(image+"@s")) }, backendtest.Options{})
}

// TestTakeOver: a second target is refused and told who has the image; with
// steal=1 it gets it, and what the first one writes from then on is refused by
// the cluster, for good. A disk beside it goes on.
func TestTakeOver(t *testing.T) {
	image := shared.image(t, "16M")
	options, log := capture()
	first, err := backend.Open(shared.spec(image), options)
	testbed.Must(t, err)
	beside := open(t, shared.spec(shared.image(t, "16M")))
	v, w := view(t, first), view(t, beside)
	_, err = v.WriteAt([]byte("first"), 0)
	testbed.Must(t, err)

	_, err = backend.Open(shared.spec(image), backend.Options{})
	if !errors.Is(err, backend.ErrLocked) || !strings.Contains(err.Error(), "127.0.0.1:") || !strings.Contains(err.Error(), "steal=1") {
		t.Errorf("the image is opened twice: %v", err)
	}
	second := open(t, shared.spec(image, "steal=1"))
	if a, b := block.IdentityOf(first), block.IdentityOf(second); a.UUID() != b.UUID() || a.Verifier() != b.Verifier() {
		t.Error("the successor has another disk, or one that lost something")
	}
	x := view(t, second)
	got := make([]byte, 5)
	_, err = x.ReadAt(got, 0)
	testbed.Must(t, err)
	if string(got) != "first" {
		t.Errorf("the successor reads %q", got)
	}
	_, err = x.WriteAt([]byte("other"), 0)
	testbed.Must(t, err)

	for range 3 {
		_, err = v.WriteAt([]byte("late!"), 0)
		if block.Errno(err) != syscall.ESHUTDOWN {
			t.Errorf("a late write: %v", err)
		}
	}
	if err := v.Sync(); block.Errno(err) != syscall.ESHUTDOWN {
		t.Errorf("a late flush: %v", err)
	}
	if err := block.Revoked(block.IdentityOf(first)); block.Errno(err) != syscall.ESHUTDOWN {
		t.Errorf("the disk does not say that it has ended: %v", err)
	}
	if _, err := first.NewQueue(1); block.Errno(err) != syscall.ESHUTDOWN {
		t.Errorf("a queue of a disk that has ended: %v", err)
	}
	if n := strings.Count(log.String(), "event=disk_revoked"); n != 1 {
		t.Errorf("the log says %d times that the disk has ended:\n%s", n, log)
	}
	_, err = x.ReadAt(got, 0)
	testbed.Must(t, err)
	if string(got) != "other" {
		t.Errorf("a late write took effect: %q", got)
	}
	_, err = w.WriteAt([]byte("beside"), 0)
	testbed.Must(t, err)
	for _, v := range []*block.Disk{v, w, x} {
		testbed.Must(t, v.Close())
	}
	for _, d := range []block.Device{first, beside, second} {
		testbed.Must(t, d.Close())
	}
}

// TestIdentity: the record is kept with the image, survives a target that did
// not close it, and does not go over to a copy.
func TestIdentity(t *testing.T) {
	image := shared.image(t, "16M")
	first := open(t, shared.spec(image))
	_, err := block.IdentityOf(first).SetWriter([16]byte{7})
	testbed.Must(t, err)
	was := block.IdentityOf(first)
	second := open(t, shared.spec(image, "steal=1")) // the first one was not closed
	testbed.Must(t, second.Close())
	third := open(t, shared.spec(image))
	for _, d := range []block.Device{second, third} {
		now := block.IdentityOf(d)
		if now.UUID() != was.UUID() || now.Verifier() != was.Verifier() || now.Writer() != was.Writer() || !now.Persistent() {
			t.Errorf("%x %x %v became %x %x %v", was.UUID(), was.Verifier(), was.Writer(), now.UUID(), now.Verifier(), now.Writer())
		}
	}
	if block.DurabilityOf(third) != block.OutlivesProcess {
		t.Error("the disk does not say that answered writes outlive it")
	}
	testbed.Must(t, third.Close())
	testbed.Must(t, first.Close())

	shared.run(t, "rbd", "cp", image, image+".copy")
	d := open(t, shared.spec(image+".copy"))
	if block.IdentityOf(d).UUID() == was.UUID() {
		t.Error("a copy has the identity of its original")
	}
	testbed.Must(t, d.Close())

	shared.run(t, "rbd", "image-meta", "set", image, "viablk.identity", "00")
	_, err = backend.Open(shared.spec(image), backend.Options{})
	remove := "rbd image-meta remove " + image + " viablk.identity"
	if err == nil || !strings.Contains(err.Error(), remove) {
		t.Fatalf("a damaged record: %v", err)
	}
	shared.run(t, strings.Fields(remove)...)
	d = open(t, shared.spec(image))
	testbed.Must(t, d.Close())
}

// TestResize: a disk has the size of its image, and requests behind the end
// fail.
func TestResize(t *testing.T) {
	image := shared.image(t, "16M")
	d := open(t, shared.spec(image))
	for _, size := range []int64{24 << 20, 8 << 20} {
		shared.run(t, "rbd", "resize", image, "--allow-shrink", "--size", fmt.Sprintf("%dB", size))
		testbed.Eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == size })
		v := view(t, d)
		_, err := v.WriteAt(make([]byte, 4096), size-4096)
		testbed.Must(t, err)
		for off, want := range map[int64]syscall.Errno{size: syscall.ENOSPC, size - 512: syscall.ENOSPC} {
			if _, err := v.WriteAt(make([]byte, 4096), off); block.Errno(err) != want {
				t.Errorf("write at %d of %d: %v", off, size, err)
			}
		}
		testbed.Must(t, v.Close())
	}
	testbed.Must(t, d.Close())
}

// TestGrow: the process that has the lock grows its image, and makes none
// shorter, also one that another client has made longer meanwhile.
func TestGrow(t *testing.T) {
	image := shared.image(t, "16M")
	d := open(t, "delay:flush=1us:"+shared.spec(image))
	v := view(t, d)
	_, err := v.WriteAt(bytes.Repeat([]byte{5}, 4096), 16<<20-4096)
	testbed.Must(t, err)
	grow := func(size int64) error {
		now, err := backend.PrepareGrow(d, size)
		if err == nil {
			err = now()
		}
		return err
	}
	for range 2 {
		testbed.Must(t, grow(24<<20))
		if got := d.Info().Size; got != 24<<20 {
			t.Errorf("it has %d bytes", got)
		}
	}
	later := view(t, d)
	_, err = later.WriteAt(make([]byte, 4096), 24<<20-4096)
	testbed.Must(t, err)
	got := make([]byte, 4096)
	_, err = later.ReadAt(got, 16<<20-4096)
	testbed.Must(t, err)
	if !bytes.Equal(got, bytes.Repeat([]byte{5}, 4096)) {
		t.Error("what was written is not there")
	}
	if err := grow(8 << 20); !errors.Is(err, backend.ErrFixedSize) {
		t.Errorf("to less: %v", err)
	}
	now, err := backend.PrepareGrow(d, 32<<20)
	testbed.Must(t, err)
	shared.run(t, "rbd", "resize", image, "--size", "40M")
	if err := now(); err == nil {
		t.Error("an image that has grown meanwhile is made shorter")
	}
	testbed.Eventually(t, "the size", func() (any, bool) { return d.Info().Size, d.Info().Size == 40<<20 })
	testbed.Must(t, errors.Join(v.Close(), later.Close(), d.Close()))
	read := open(t, shared.spec(image)+"&readonly=1")
	if _, err := backend.PrepareGrow(read, 48<<20); !errors.Is(err, backend.ErrFixedSize) {
		t.Errorf("open for reading: %v", err)
	}
	testbed.Must(t, read.Close())
}

// TestFull: a full cluster is ENOSPC, and reads go on.
func TestFull(t *testing.T) {
	options, log := capture()
	d, err := backend.Open(shared.spec(shared.image(t, "16M")), options)
	testbed.Must(t, err)
	v := view(t, d)
	_, err = v.WriteAt(make([]byte, 4096), 0)
	testbed.Must(t, err)
	ratios := func(nearly, full string) {
		for kind, ratio := range map[string]string{"nearfull": nearly, "backfillfull": nearly, "full": full} {
			shared.run(t, "ceph", "osd", "set-"+kind+"-ratio", ratio)
		}
	}
	defer ratios("0.9", "0.95")
	ratios("0.00001", "0.00001")
	end := int64(4096)
	grow := func() error {
		_, err := v.WriteAt(make([]byte, 4096), end)
		end += 4096
		return err
	}
	testbed.Eventually(t, "ENOSPC", func() (any, bool) {
		err := grow() // the map comes to the client in a moment
		return err, block.Errno(err) == syscall.ENOSPC
	})
	_, err = v.ReadAt(make([]byte, 4096), 0)
	testbed.Must(t, err)
	if !strings.Contains(log.String(), "event=disk_full") {
		t.Errorf("the log does not say that the cluster is full:\n%s", log)
	}
	ratios("0.9", "0.95")
	testbed.Eventually(t, "room", func() (any, bool) {
		err := grow()
		return err, err == nil
	})
	testbed.Must(t, v.Sync())
	testbed.Must(t, v.Close())
	testbed.Must(t, d.Close())
}

// TestRefusals: what cannot be opened says what to do.
func TestRefusals(t *testing.T) {
	image, unlocked, cached := shared.image(t, "16M"), shared.image(t, "16M", "--image-feature", "layering"), shared.image(t, "16M")
	striped := shared.image(t, "16M", "--stripe-unit", "512", "--stripe-count", "2")
	shared.run(t, "rbd", "config", "image", "set", cached, "rbd_cache", "true")
	keyless := filepath.Join(t.TempDir(), "ceph.conf")
	text, err := os.ReadFile(shared.conf)
	testbed.Must(t, err)
	text = bytes.ReplaceAll(text, []byte("required = none"), []byte("required = cephx"))
	text = bytes.ReplaceAll(text, []byte("keyring = "), []byte("keyring = /nonexistent"))
	testbed.Must(t, os.WriteFile(keyless, text, 0o600))
	for _, c := range []struct {
		spec string
		is   error
		says string
	}{
		{shared.spec("nopool/image"), fs.ErrNotExist, `no pool "nopool"`},
		{shared.spec("rbd/none"), fs.ErrNotExist, "rbd create --size SIZE rbd/none"},
		{shared.spec(image + "@none"), fs.ErrNotExist, "no such image or snapshot"},
		{shared.spec(image, "namespace=none"), fs.ErrNotExist, "no such image"},
		{"rbd:" + image + "?conf=/nonexistent", fs.ErrNotExist, "conf=PATH"},
		{"rbd:" + image + "?conf=" + keyless, fs.ErrNotExist, "no keyring of client.admin"},
		{shared.spec(unlocked), backend.ErrUsage, "rbd feature enable " + unlocked + " exclusive-lock"},
		{shared.spec(cached), backend.ErrUsage, "rbd config image remove " + cached + " rbd_cache"},
		{shared.spec(striped), backend.ErrUsage, "stripes of 512 bytes"},
	} {
		_, err := backend.Open(c.spec, backend.Options{})
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.spec, err)
		}
	}
	d := open(t, shared.spec(unlocked, "readonly=1"))
	testbed.Must(t, d.Close())
}

// TestPoolDeleted: a disk whose pool is gone fails requests. It does not read
// zeroes.
func TestPoolDeleted(t *testing.T) {
	shared.run(t, "ceph", "osd", "pool", "create", "gone", "8", "8", "replicated")
	shared.run(t, "rbd", "create", "gone/image", "--size", "16M")
	d := open(t, shared.spec("gone/image"))
	v := view(t, d)
	_, err := v.WriteAt(bytes.Repeat([]byte{'x'}, 4096), 0)
	testbed.Must(t, err)
	shared.run(t, "ceph", "osd", "pool", "delete", "gone", "gone", "--yes-i-really-really-mean-it")
	p := make([]byte, 4096)
	testbed.Eventually(t, "the end of the pool", func() (any, bool) {
		_, err := v.ReadAt(p, 0)
		if err == nil && p[0] != 'x' {
			t.Fatal("a disk without its pool reads zeroes")
		}
		return err, err != nil
	})
	if _, err := v.WriteAt(p, 0); err == nil {
		t.Error("a disk without its pool takes writes")
	}
	testbed.Must(t, v.Close())
	_ = d.Close() // there is nothing that it could make clean
}
