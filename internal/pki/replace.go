package pki

import (
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// replacement is a file that is written beside the one that it will replace.
type replacement struct{ temporary, path string }

// prepare writes a replacement to the disk.
func prepare(path, kind string, der []byte, mode fs.FileMode) (replacement, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return replacement{}, err
	}
	err = errors.Join(
		f.Chmod(mode),
		pem.Encode(f, &pem.Block{Type: kind, Bytes: der}),
		f.Sync(),
		f.Close(),
	)
	if err != nil {
		return replacement{}, errors.Join(err, os.Remove(f.Name()))
	}
	return replacement{f.Name(), path}, nil
}

// apply puts the replacement into its place: readers see the old file or the
// new one.
func (r replacement) apply() error {
	if err := os.Rename(r.temporary, r.path); err != nil {
		return errors.Join(err, os.Remove(r.temporary))
	}
	return nil
}

// discard removes what was not applied.
func (r replacement) discard() error { return os.Remove(r.temporary) }

// replacePEM replaces a file.
func replacePEM(path, kind string, der []byte, mode fs.FileMode) error {
	r, err := prepare(path, kind, der, mode)
	if err != nil {
		return err
	}
	return r.apply()
}
