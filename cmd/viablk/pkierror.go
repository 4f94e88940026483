package main

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/viablk/viablk/internal/pki"
)

// pkiError says what can be done about a folder of certificates that cannot be
// used, about files that are there, and names that are not known.
func pkiError(err error) error {
	var file *pki.FileError
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: nothing is replaced; remove it, choose another folder, or use viablk pki renew", err)
	case errors.Is(err, pki.ErrUnknown):
		return fmt.Errorf("%w: give its serial number, as viablk pki show prints it", err)
	case errors.Is(err, pki.ErrStaleList):
		return fmt.Errorf("%w: make it with viablk pki revoke", err)
	case errors.Is(err, pki.ErrExposedKey), !errors.As(err, &file):
		return err
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run viablk as a user who may read it", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: name a folder that viablk pki init and issue made", err)
	}
	return fmt.Errorf("%w: viablk pki check tells what is wrong with the folder", err)
}

// pkiExitCode returns the exit code of an error in a folder of certificates.
func pkiExitCode(err *pki.FileError) int {
	if errors.Is(err, fs.ErrPermission) {
		return exitPermission
	}
	return exitConfiguration
}
