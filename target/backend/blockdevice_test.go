package backend

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
	"golang.org/x/sys/unix"
)

// loopDevice returns a block device whose content is a new file.
func loopDevice(t testing.TB) string {
	t.Helper()
	path, _ := loopDeviceOf(t)
	return path
}

// loopDeviceOf returns a block device, and the new file that is its content.
func loopDeviceOf(t testing.TB) (path, content string) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("block devices for tests are made by root on kernels with loop devices: %v", err)
	}
	defer control.Close()
	content = newFile(t, diskSize)
	image, err := os.OpenFile(content, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	for range 10 { // another process may take the free one first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		path = fmt.Sprintf("/dev/loop%d", n)
		device, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
		if err == unix.EBUSY {
			device.Close()
			continue
		}
		if err != nil {
			t.Fatalf("attach %s: %v", path, err)
		}
		t.Cleanup(func() {
			if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
				t.Errorf("detach %s: %v", path, err)
			}
			device.Close()
		})
		return path, content
	}
	t.Fatal("no loop device is free")
	return "", ""
}

func TestBlockDevice(t *testing.T) {
	for _, options := range []string{"", "?direct=1"} {
		t.Run("file:"+options, func(t *testing.T) {
			path := loopDevice(t)
			backendtest.Run(t, func(t testing.TB) block.Device {
				return mustOpen(t, "file:"+path+options, Options{StateFolder: t.TempDir()})
			}, backendtest.Options{
				Broken: func(t testing.TB) block.Device {
					return mustOpen(t, "fault:write=EIO:file:"+path+options, Options{StateFolder: t.TempDir()})
				},
			})
		})
	}
}

// A block device that is grown has its new size.
func TestResizedBlockDevice(t *testing.T) {
	path, image := loopDeviceOf(t)
	d := mustOpen(t, "file:"+path, Options{StateFolder: t.TempDir()})
	defer d.Close()
	if err := os.Truncate(image, 2*diskSize); err != nil {
		t.Fatal(err)
	}
	loop, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		t.Fatal(err)
	}
	if i := d.Info(); i.Size != 2*diskSize {
		t.Errorf("a block device of %d bytes is %+v", 2*diskSize, i)
	}
}

func TestBlockDeviceInfo(t *testing.T) {
	path := loopDevice(t)
	d := mustOpen(t, "file:"+path, Options{StateFolder: t.TempDir()})
	defer d.Close()
	if i := d.Info(); i.Size != diskSize || i.MinimumBlock != 512 {
		t.Errorf("a block device of %d bytes is %+v", diskSize, i)
	}
	if _, err := Open("file:"+path, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("second open of a block device: %v, want ErrLocked", err)
	}
}
