package initiator

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
)

// errClosed is the error of every operation on a closed device.
var errClosed = fmt.Errorf("the device is closed: %w", errSession)

// file returns the synchronous view of the disk, opened at first use.
func (d *Device) file() (*block.Disk, error) {
	d.mu.Lock()
	disk, closed := d.disk, d.closed
	d.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case disk != nil:
		return disk, nil
	}
	disk, err := block.NewDisk(d)
	if err != nil {
		return nil, err
	}
	// disk.Close runs without d.mu, which the queues of the disk lock.
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, errors.Join(errClosed, disk.Close())
	}
	first := d.disk == nil
	if first {
		d.disk = disk
	}
	used := d.disk
	d.mu.Unlock()
	if !first {
		return used, disk.Close() // another caller was first
	}
	return used, nil
}

// ReadAt reads len(p) bytes at off. It returns io.EOF with a short count at the
// end of the disk.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	disk, err := d.file()
	if err != nil {
		return 0, err
	}
	return disk.ReadAt(p, off)
}

// WriteAt writes p at off. The data is durable after Sync.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	disk, err := d.file()
	if err != nil {
		return 0, err
	}
	return disk.WriteAt(p, off)
}

// Size returns the present size of the disk in bytes. ReadAt, WriteAt, Trim and
// WriteZeroes keep the size of the first call of one of them.
func (d *Device) Size() int64 { return d.Info().Size }

// Sync makes every write that returned before it durable at the target.
func (d *Device) Sync() error {
	disk, err := d.file()
	if err != nil {
		return err
	}
	return disk.Sync()
}

// Trim tells the target that a range may be discarded; its content is undefined
// afterwards.
func (d *Device) Trim(off, length int64) error {
	disk, err := d.file()
	if err != nil {
		return err
	}
	return disk.Trim(off, length)
}

// Extents calls visit with what a range of the disk consists of, in order and
// without a gap, until visit returns an error.
func (d *Device) Extents(off, length int64, visit func(off int64, e block.Extent) error) error {
	disk, err := d.file()
	if err != nil {
		return err
	}
	return disk.Extents(off, length, visit)
}

// WriteZeroes makes a range read as zeroes.
func (d *Device) WriteZeroes(off, length int64) error {
	disk, err := d.file()
	if err != nil {
		return err
	}
	return disk.WriteZeroes(off, length, 0)
}
