package shm

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// checkListener refuses a listener of a user who only took the path: the
// requester would exchange its data with that user.
func checkListener(conn *net.UnixConn, path string) error {
	cred, err := credentials(conn)
	if err != nil {
		return err
	}
	self := uint32(os.Geteuid())
	if cred.Uid == 0 || cred.Uid == self {
		return nil
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("listener of user %d: %w", cred.Uid, err)
	}
	folder, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !trustedListener(cred.Uid, self, folder.Uid, info.Mode()) {
		return fmt.Errorf("user %d listens at %s, neither root nor the only user who can make a socket there: %w", cred.Uid, path, fs.ErrPermission)
	}
	return nil
}

// trustedListener reports whether a user may listen for this process's user, in
// a folder with that owner and mode.
func trustedListener(user, self, owner uint32, mode fs.FileMode) bool {
	const writable = 0o022 // by the group or others
	return user == 0 || user == self || user == owner && mode&writable == 0
}
