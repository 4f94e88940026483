package pki

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maximumFile bounds what is read of a file, in bytes.
const maximumFile = 1 << 20

// ErrExposedKey is the error for the file of a key that other users may read or
// replace.
var ErrExposedKey = errors.New("other users have access to the key")

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	return readChecked(path, func(os.FileInfo) error { return nil })
}

// readSecret reads the file of a key. It belongs to this user or to root, and
// no other user has access; but a group may read what root gave it.
func readSecret(path string) ([]byte, error) {
	return readChecked(path, func(info os.FileInfo) error {
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		allowed := os.FileMode(0o700)
		if st.Uid == 0 {
			allowed |= 0o040
		}
		switch {
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%q belongs to user %d: %w: it must be root's or your own", path, st.Uid, ErrExposedKey)
		case info.Mode().Perm()&^allowed != 0:
			return fmt.Errorf("%q has mode %#o: %w: chmod 600 it", path, info.Mode().Perm(), ErrExposedKey)
		}
		return nil
	})
}

// readChecked reads a file of bounded size, once check has accepted it.
func readChecked(path string, check func(os.FileInfo) error) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maximumFile {
		return nil, fmt.Errorf("%q has %d bytes, which is no certificate", path, info.Size())
	}
	if err := check(info); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maximumFile))
}
