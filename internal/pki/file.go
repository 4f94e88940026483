package pki

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maximumFile bounds what is read of a file, in bytes.
const maximumFile = 1 << 20

// ErrExposedKey is the error for the file of a key that other users may read or
// replace.
var ErrExposedKey = errors.New("other users have access to the key")

// FileError is the error for a file of a folder that is missing, or is not what
// it has to be. It names the file.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%q: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// fileError returns the error for a file. Of an error of package os it leaves
// out the path, which would stand there twice.
func fileError(path string, err error) error {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		err = at.Err
	}
	return &FileError{path, err}
}

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	return readChecked(path, func(os.FileInfo) error { return nil })
}

// readSecret reads the file of a key. It belongs to this user or to root, and
// no other user or group has access.
func readSecret(path string) ([]byte, error) {
	return readChecked(path, func(info os.FileInfo) error {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		switch {
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("it belongs to user %d: %w: it must be root's or your own", st.Uid, ErrExposedKey)
		case info.Mode().Perm()&0o077 != 0:
			return fmt.Errorf("it has mode %#o: %w: chmod 600 it", info.Mode().Perm(), ErrExposedKey)
		}
		return nil
	})
}

// readChecked reads a regular file of bounded size, once check has accepted it.
func readChecked(path string, check func(os.FileInfo) error) ([]byte, error) {
	text, err := readRegular(path, check)
	if err != nil {
		return nil, fileError(path, err)
	}
	return text, nil
}

func readRegular(path string, check func(os.FileInfo) error) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe has no writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maximumFile:
		return nil, fmt.Errorf("it has %d bytes, and certificates have at most %d", info.Size(), maximumFile)
	}
	if err := check(info); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maximumFile))
}
