package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Place is where a record is kept. Its methods make no assumption about other
// processes: the caller holds the lock of the disk.
type Place interface {
	// Load returns the bytes of the record, or fs.ErrNotExist.
	Load() ([]byte, error)

	// Store replaces the record; it returns when the record is durable.
	Store(b []byte) error

	// String names the place for people.
	String() string
}

// errNoPlace means that a file system keeps no extended attributes.
var errNoPlace = errors.New("the file system keeps no extended attributes")

// attribute is the name of the extended attribute.
const attribute = "user.viablk.identity"

// recordLimit bounds what is read of a record, in bytes.
const recordLimit = 4096

// xattr is an extended attribute of the open disk.
type xattr struct {
	fd   int
	path string
}

func (x xattr) String() string { return fmt.Sprintf("attribute %s of %q", attribute, x.path) }

func (x xattr) Load() ([]byte, error) {
	b := make([]byte, recordLimit)
	for {
		n, err := unix.Fgetxattr(x.fd, attribute, b)
		switch err {
		case nil:
			return b[:n], nil
		case unix.EINTR:
		case unix.ENODATA:
			return nil, fs.ErrNotExist
		case unix.EOPNOTSUPP, unix.EPERM: // EPERM: a device has none of its own
			return nil, errNoPlace
		case unix.ERANGE:
			return nil, fmt.Errorf("%w: more than %d bytes", ErrDamaged, recordLimit)
		default:
			return nil, err
		}
	}
}

func (x xattr) Store(b []byte) error {
	for {
		switch err := unix.Fsetxattr(x.fd, attribute, b, 0); err {
		case nil:
			return syncFile(x.fd)
		case unix.EINTR:
		default:
			return err
		}
	}
}

// syncFile makes a file and what describes it durable. It is not tried again
// after a failure.
func syncFile(fd int) error {
	for {
		if err := unix.Fsync(fd); err != unix.EINTR {
			return err
		}
	}
}

// sidecar is a file of its own, in a folder that belongs to viablk.
type sidecar struct{ path string }

// newSidecar returns the sidecar of a disk, by the path without symbolic links
// that it is opened at.
func newSidecar(folder, disk string) sidecar {
	h := sha256.Sum256([]byte(disk))
	return sidecar{filepath.Join(folder, hex.EncodeToString(h[:16])+".identity")}
}

func (s sidecar) String() string { return s.path }

func (s sidecar) Load() ([]byte, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recordLimit+1))
	if err == nil && len(b) > recordLimit {
		err = fmt.Errorf("%w: more than %d bytes", ErrDamaged, recordLimit)
	}
	return b, err
}

// Store writes a new file beside the old one and renames it.
func (s sidecar) Store(b []byte) (err error) {
	folder := filepath.Dir(s.path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), s.path); err != nil {
		return err
	}
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
