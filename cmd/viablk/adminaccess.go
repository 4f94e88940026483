package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/nbd"
)

// Limits of the status socket, as those of metrics. Connections beyond them
// wait in the kernel.
const (
	adminConnections = 64 // also those without an interval
	adminInterval    = 10 * time.Millisecond
)

// admitGroup lets the user of the process open a status socket, and the members
// of a group if one is named. It closes the listener if it fails.
func admitGroup(l net.Listener, path, group string) (net.Listener, error) {
	err := os.Chmod(path, 0o600)
	if err == nil && group != "" {
		var gid int
		if gid, err = groupID(group); err == nil {
			err = os.Chown(path, -1, gid)
		}
		if err == nil {
			err = os.Chmod(path, 0o660)
		}
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("admin_group: %w", err)
	}
	return l, nil
}

// groupID returns the number of a group, which is named or is a number.
func groupID(group string) (int, error) {
	if n, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, &exit{exitConfiguration, err}
	}
	return strconv.Atoi(g.Gid)
}

// peerKey is the key of the user behind a connection in its context.
type peerKey struct{}

// withPeer adds the user behind a connection, whom the kernel names, to its
// context.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if paced, ok := c.(*pacedConn); ok {
		c = paced.Conn
	}
	if uid, ok := nbd.PeerUID(c); ok {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
}

var errReadOnlyPeer = errors.New("only root and the user of the process may do this")

// ownerChanges refuses changes, and requests that show its memory or cost it
// time, to all but root and the user of the process.
func ownerChanges(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, known := r.Context().Value(peerKey{}).(uint32)
		owner := known && (uid == 0 || int(uid) == os.Geteuid())
		reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/debug/")
		if !owner && !reads {
			answerError(w, http.StatusForbidden, errReadOnlyPeer)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// adminCall is a request of a status socket.
type adminCall struct {
	method, route string
	body          []byte
	timeout       time.Duration // beyond askTimeout
	or            int           // another status whose document is for read; 0: none
	read          func(c net.Conn, body *json.Decoder) error
}

// adminExits are the exit codes for what a process answers.
var adminExits = map[int]int{
	http.StatusBadRequest: exitUsage, http.StatusForbidden: exitPermission, http.StatusNotFound: exitFalse,
	http.StatusConflict: exitTryAgain, http.StatusServiceUnavailable: exitTryAgain, http.StatusUnprocessableEntity: exitConfiguration,
}

// extendDeadline gives the answer to a request more time than usual.
func extendDeadline(w http.ResponseWriter, d time.Duration) {
	by, c := time.Now().Add(d+askTimeout), http.NewResponseController(w)
	// An error here is a writer without deadlines, as tests have. The server
	// reads while it answers, to see that the client leaves.
	_, _ = c.SetReadDeadline(by), c.SetWriteDeadline(by)
}
