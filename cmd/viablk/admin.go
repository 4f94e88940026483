package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// adminNone is the value of the admin key that asks for no status socket.
const adminNone = "none"

// processStatus is what GET /v1/status answers, and an element of what "viablk
// status" prints.
type processStatus struct {
	Schema  string         `json:"schema"` // viablk.process/v1
	PID     int            `json:"pid"`
	Command string         `json:"command"` // target, attach or up
	Version string         `json:"version"`
	Started time.Time      `json:"started"`
	Panics  uint64         `json:"panics"` // caught; each ended one connection or request
	Exports []exportStatus `json:"exports"`
	Faces   []faceStatus   `json:"faces,omitempty"` // the exports by the ways in which they are served

	NBD        *nbd.Status        `json:"nbd,omitempty"`
	Targets    []target.Status    `json:"targets,omitempty"`    // one for each VIA provider
	Initiators []initiator.Status `json:"initiators,omitempty"` // one for each remote disk
	Device     *deviceStatus      `json:"device,omitempty"`     // the kernel's block device, if there is one
	Disks      []diskStatus       `json:"disks,omitempty"`      // one for each disk of a target
	Limits     []limitStatus      `json:"limits,omitempty"`     // one for each disk with limits
	Network    []networkReport    `json:"network,omitempty"`    // one for each UDP address of RoCE
	RDMA       []rdmaReport       `json:"rdma,omitempty"`       // one for each RDMA device
	Sessions   []sessionStatus    `json:"sessions"`             // clients that have an export

	socket string // at which it was asked
}

// exportStatus is one disk that a process serves.
type exportStatus struct {
	Name     string   `json:"name"`
	Size     int64    `json:"size"` // bytes
	ReadOnly bool     `json:"read_only"`
	URIs     []string `json:"uris"`
	Device   string   `json:"device,omitempty"` // of the kernel
}

// places returns where the export is to be found.
func (e *exportStatus) places() []string {
	if e.Device == "" {
		return e.URIs
	}
	return append([]string{e.Device}, e.URIs...)
}

// runtimeFolder is where the status sockets are.
func runtimeFolder() string {
	if folder := os.Getenv("XDG_RUNTIME_DIR"); folder != "" {
		return filepath.Join(folder, "viablk")
	}
	return "/run/viablk"
}

// runtimeHint says what to do about a runtime folder that is another user's.
func runtimeHint(err error) string {
	if !errors.Is(err, fs.ErrPermission) || os.Getenv("XDG_RUNTIME_DIR") != "" {
		return ""
	}
	return ": set XDG_RUNTIME_DIR to a folder of this user, such as /run/user/" + strconv.Itoa(os.Getuid()) +
		", for the processes that it starts, or be root for those of root"
}

// listenAdmin opens the status socket that the admin key asks for. The listener
// is nil if there is none: because it is not wanted, or because its usual place
// cannot be used, which reason then tells. A socket that moves is that of the
// process before, and has its path.
func listenAdmin(ctx context.Context, admin, group string, from handover) (l net.Listener, moves bool, reason, err error) {
	l, path, err := from.adoptAdmin()
	if err != nil {
		return nil, false, nil, fmt.Errorf("status socket: %w", err)
	}
	if l != nil {
		l, err = admitGroup(l, path, group)
		return l, true, nil, err
	}
	path = cmp.Or(admin, usualAdmin())
	switch admin {
	case adminNone:
		return nil, false, nil, nil
	case "":
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, false, err, nil
		}
		removeDeadSockets(ctx)
	}
	if l, err = nbd.ListenUnix(ctx, path, 0o600); err != nil {
		if admin == "" {
			return nil, false, err, nil
		}
		return nil, false, nil, fmt.Errorf("status socket: %w", err)
	}
	l, err = admitGroup(l, path, group)
	return l, false, nil, err
}

// adminPart serves the status socket: the status, the sessions, the profiles of
// net/http/pprof, and other routes. Only the user of the process can open the
// socket, and the members of admin_group, who change nothing.
func adminPart(l *pacedListener, cache *statusCache, ender sessionEnder, routes ...func(*http.ServeMux)) part {
	mux := http.NewServeMux()
	report := func(w http.ResponseWriter, r *http.Request) {
		d, err := cache.now(r.Context())
		cache.answer(w, d, err)
	}
	mux.HandleFunc("GET /status", report)
	mux.HandleFunc("GET /v1/status", report)
	handleSessions(mux, cache, ender)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for _, add := range routes {
		add(mux)
	}
	server := &http.Server{
		Handler:           l.noted(ownerChanges(mux)),
		ConnContext:       withPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second, // also of a client that is idle
		WriteTimeout:      5 * time.Second,
		MaxHeaderBytes:    16 << 10,
	}
	server.SetKeepAlivesEnabled(false) // what bounds connections bounds requests
	return part{
		name: "status socket",
		serve: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { server.Close() })
			defer stop()
			err := server.Serve(l)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return l.ended(ctx, err)
		},
		drain: func(ctx context.Context) error { return errors.Join(l.drain(ctx), server.Close()) },
		stays: true,
	}
}

// maximumAnswer bounds the answer of a process, in bytes: each of its exports
// takes up to 10 kB, most of it for durations, and each client a few hundred.
const maximumAnswer = 128 << 20

// askTimeout is how long a process may take to say its status.
const askTimeout = 5 * time.Second

// askStatus gets the status of the process behind a status socket. Its PID is
// what the kernel says, which may be followed by signals.
func askStatus(ctx context.Context, path string) (status processStatus, err error) {
	said := 0
	err = askAdmin(ctx, path, adminCall{method: http.MethodGet, route: "/status", read: func(c net.Conn, body *json.Decoder) error {
		err := body.Decode(&status)
		said, status.PID, status.socket = status.PID, nbd.ListenerPID(c), path
		return err
	}})
	if err != nil {
		return status, fmt.Errorf("ask %q: %w", path, err)
	}
	if said != status.PID {
		// The connection waited for a process that took over, and names the one
		// before, or the process is in a namespace of its own.
		if c, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			status.PID = nbd.ListenerPID(c)
			c.Close()
		}
	}
	return status, nil
}

// answerCode is an answer of a process that is not the one asked for.
type answerCode struct {
	code int
	text string
}

func (e *answerCode) Error() string { return e.text }

// askAdmin makes a request of the process behind a status socket, and passes
// the answer to call.read, which may be nil.
func askAdmin(ctx context.Context, path string, call adminCall) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout+call.timeout)
	defer cancel()
	c, answer, err := openAdmin(ctx, path, call)
	if err != nil {
		return err
	}
	defer c.Close()
	defer answer.Close()
	if call.read == nil {
		return nil
	}
	limit := &io.LimitedReader{R: answer, N: maximumAnswer}
	if err := call.read(c, json.NewDecoder(limit)); err != nil {
		if limit.N <= 0 {
			return fmt.Errorf("the answer is longer than %d bytes", maximumAnswer)
		}
		return err
	}
	return nil
}

// openAdmin makes a request of the process behind a status socket, until ctx
// ends. The caller reads the answer, and closes it and the connection. It makes
// the request by hand: another server may be there, which the client of package
// http would log.
func openAdmin(ctx context.Context, path string, call adminCall) (_ net.Conn, answer io.ReadCloser, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	request, err := http.NewRequestWithContext(ctx, call.method, "http://viablk"+call.route, bytes.NewReader(call.body))
	if err != nil {
		return nil, nil, err
	}
	request.Close = true
	if err := request.Write(c); err != nil {
		return nil, nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), request)
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices && response.StatusCode != call.or {
		defer response.Body.Close()
		return nil, nil, refusalOf(response, json.NewDecoder(io.LimitReader(response.Body, maximumAnswer)))
	}
	return c, response.Body, nil
}

// refusalOf returns the error that an answer is.
func refusalOf(response *http.Response, body *json.Decoder) error {
	var refusal adminError
	if body.Decode(&refusal) != nil || refusal.Error.Message == "" {
		refusal.Error.Message = response.Status
	}
	return &answerCode{response.StatusCode, refusal.text()}
}

// staleTimeout bounds how long a start waits for the sockets of dead processes.
const staleTimeout = time.Second

// removeDeadSockets removes the status sockets of processes that were killed. A
// socket that cannot be removed stays: commands pass over it.
func removeDeadSockets(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, staleTimeout)
	defer cancel()
	paths, _ := adminSockets() // the caller notices that the folder cannot be read
	for _, path := range paths {
		pid, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".sock"))
		if unix.Kill(pid, 0) == unix.ESRCH && ctx.Err() == nil {
			_ = nbd.RemoveStale(ctx, path)
		}
	}
}

// visitAdmins has ask ask the process behind each status socket in the runtime
// folder, and again if none answers and a socket is gone: that of a process
// that took over has another name. A socket without a listener belongs to a
// process that is gone. Any other error ends the visits.
func visitAdmins(ask func(path string) error) error {
	for answered, moved := false, true; moved && !answered; {
		moved = false
		paths, err := adminSockets()
		if err != nil {
			return err
		}
		for _, path := range paths {
			switch err := ask(path); {
			case err == nil:
				answered = true
			case errors.Is(err, syscall.ENOENT):
				moved = true
			case !errors.Is(err, syscall.ECONNREFUSED):
				return err
			}
		}
	}
	return nil
}

// adminSockets lists the status sockets in the runtime folder.
func adminSockets() ([]string, error) {
	entries, err := os.ReadDir(runtimeFolder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find running processes: %w%s", err, runtimeHint(err))
	}
	var paths []string
	for _, e := range entries {
		// Other sockets there are disks and targets.
		pid, isSocket := strings.CutSuffix(e.Name(), ".sock")
		if _, err := strconv.Atoi(pid); err == nil && isSocket && e.Type() == fs.ModeSocket {
			paths = append(paths, filepath.Join(runtimeFolder(), e.Name()))
		}
	}
	return paths, nil
}
