package vm

import (
	"fmt"
	"io"
)

// cpioWriter writes a cpio archive in the format newc, see the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst. An error stays
// and is returned by close.
type cpioWriter struct {
	to    io.Writer
	inode uint32
	err   error
}

// Types of a file in a mode, as the format has them.
const (
	cpioFolder  = 0o040000
	cpioFile    = 0o100000
	cpioSymlink = 0o120000
	cpioDevice  = 0o020000 // a character device
)

// cpioTrailer is the name of the last entry.
const cpioTrailer = "TRAILER!!!"

// write writes an entry of which the content, size bytes, is read from data.
func (w *cpioWriter) write(name string, mode uint32, size int64, data io.Reader) {
	w.writeDevice(name, mode, size, data, 0, 0)
}

// writeDevice is write for an entry with the numbers of a device.
func (w *cpioWriter) writeDevice(name string, mode uint32, size int64, data io.Reader, major, minor uint32) {
	if size>>32 != 0 && w.err == nil {
		w.err = fmt.Errorf("%s: %d bytes are too many for an archive", name, size)
	}
	w.inode++
	w.print("070701")
	for _, field := range []uint32{
		w.inode, mode, 0, 0, 1, 0, uint32(size), // inode, mode, uid, gid, links, mtime, size
		0, 0, major, minor, uint32(len(name) + 1), 0, // device it is on, device it is, name, checksum
	} {
		w.print(fmt.Sprintf("%08X", field))
	}
	const header = 6 + 13*8
	w.print(name + "\x00" + padding(header+int64(len(name))+1))
	if w.err == nil && size > 0 {
		_, w.err = io.CopyN(w.to, data, size)
	}
	w.print(padding(size))
}

// close writes the end of the archive.
func (w *cpioWriter) close() error {
	w.write(cpioTrailer, 0, 0, nil)
	return w.err
}

func (w *cpioWriter) print(text string) {
	if w.err == nil {
		_, w.err = io.WriteString(w.to, text)
	}
}

// padding is what follows so many bytes up to the next multiple of four.
func padding(length int64) string { return "\x00\x00\x00"[:(4-length%4)%4] }
