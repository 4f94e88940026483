package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// state is what the kernel tells of a disk.
type state struct {
	binding  [16]byte // the same for this file or device alone
	modified int64    // ns since 1970; 0 of what is no file
}

// examine asks the kernel, before anything that may change the time of
// modification. A file system without birth times leaves the inode number alone
// to tell files apart.
func (d *Disk) examine() (state, error) {
	if kept := d.options.Kept; kept != nil {
		return state{binding: kept.Binding}, nil
	}
	var st unix.Statx_t
	err := unix.Statx(d.options.FD, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	if err != nil {
		return state{}, fmt.Errorf("statx: %w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return state{binding: bind("device", deviceName(st.Rdev_major, st.Rdev_minor, realPath(d.options.Path)))}, nil
	}
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], st.Ino)
	if st.Mask&unix.STATX_BTIME != 0 {
		binary.LittleEndian.PutUint64(b[8:], uint64(st.Btime.Sec))
		binary.LittleEndian.PutUint32(b[16:], st.Btime.Nsec)
	}
	return state{bind("file", string(b[:])), st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec)}, nil
}

func bind(kind, name string) [16]byte {
	h := sha256.Sum256([]byte(kind + " " + name))
	return [16]byte(h[:16])
}

// deviceName returns what tells a block device from others, however it is
// attached: its world-wide name, its UUID of the device mapper, the file behind
// a loop device, or else its path.
func deviceName(major, minor uint32, path string) string {
	at := fmt.Sprintf("/sys/dev/block/%d:%d/", major, minor)
	number := ""
	for _, parent := range []string{"", "../"} { // a partition has those of its disk
		for _, name := range []string{"wwid", "device/wwid", "dm/uuid", "loop/backing_file", "serial"} {
			text, err := os.ReadFile(at + parent + name)
			if id := strings.TrimSpace(string(text)); err == nil && id != "" {
				return name + " " + id + number
			}
		}
		text, err := os.ReadFile(at + "partition")
		if err != nil {
			break
		}
		number = " partition " + strings.TrimSpace(string(text))
	}
	return "path " + path
}

// ThisBoot returns the boot ID of the machine, which no other start of it has.
// Without /proc every process is taken for a boot of its own, which is safe:
// unclean disks count as losses.
func ThisBoot() [16]byte {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		var id [16]byte
		digits := strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")
		if n, err := hex.Decode(id[:], []byte(digits)); err == nil && n == len(id) {
			return id
		}
	}
	return block.NewUUID()
}
