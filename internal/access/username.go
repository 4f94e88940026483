package access

import (
	"os/user"
	"strconv"
	"time"

	"github.com/viablk/viablk/internal/contain"
)

// A build with cgo asks name services, which may hang: few lookups run at a
// time, and a client waits for one no longer than lookupTimeout.
const (
	maxLookups    = 8
	lookupTimeout = time.Second
)

var lookups = make(chan struct{}, maxLookups)

// lookupID asks the name services; tests replace it.
var lookupID = user.LookupId

// userName returns the name of a user, or "" if there is none or the lookup
// takes too long: the user then has the rights of the user ID alone.
func userName(uid uint32) string {
	timeout := time.NewTimer(lookupTimeout)
	defer timeout.Stop()
	select {
	case lookups <- struct{}{}:
	case <-timeout.C:
		return ""
	}
	found := make(chan string, 1)
	go func() {
		defer func() { <-lookups }()
		name := ""
		defer func() {
			if value := recover(); value != nil {
				contain.Caught(value).Log(nil, "panic: a user has the rights of the user ID alone", "uid", uid)
			}
			found <- name
		}()
		if u, err := lookupID(strconv.FormatUint(uint64(uid), 10)); err == nil && checkUser(u.Username) == nil {
			name = u.Username
		}
	}()
	select {
	case name := <-found:
		return name
	case <-timeout.C:
		return ""
	}
}

// userID returns the ID of a user by name.
func userID(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err
}
