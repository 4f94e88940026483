package backend

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallExt4 mounts an ext4 of diskSize bytes and returns its folder.
func smallExt4(t testing.TB) string {
	t.Helper()
	device := loopDevice(t)
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", "-J", "size=4", device).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	folder := t.TempDir()
	if err := unix.Mount(device, folder, "ext4", 0, ""); err != nil {
		t.Fatalf("mount %s: %v", device, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, 0); err != nil {
			t.Errorf("unmount %s: %v", device, err)
		}
	})
	return folder
}

// ballast fills a file system, and returns what frees it again.
func ballast(t testing.TB, folder string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(folder, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	for step := int64(1 << 20); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		default:
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}
