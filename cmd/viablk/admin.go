package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// adminNone is the value of the admin key that asks for no status socket.
const adminNone = "none"

// processStatus is what GET /status answers, and an element of what "viablk
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

// listenAdmin opens the status socket that the admin key asks for. The listener
// is nil if there is none: because it is not wanted, or because its usual place
// cannot be used, which reason then tells.
func listenAdmin(ctx context.Context, admin string) (l net.Listener, path string, reason, err error) {
	switch admin {
	case adminNone:
		return nil, "", nil, nil
	case "":
		path = filepath.Join(runtimeFolder(), strconv.Itoa(os.Getpid())+".sock")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, "", err, nil
		}
		if l, err = nbd.ListenUnix(ctx, path, 0o600); err != nil {
			return nil, "", err, nil
		}
		return l, path, nil, nil
	}
	if l, err = nbd.ListenUnix(ctx, admin, 0o600); err != nil {
		return nil, "", nil, fmt.Errorf("status socket: %w", err)
	}
	return l, admin, nil, nil
}

// adminPart serves the status socket: the status, and the profiles of
// net/http/pprof. Only the user of the process can open the socket.
func adminPart(l net.Listener, status func() processStatus) part {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// An error here is a client that went away.
		_ = json.NewEncoder(w).Encode(status())
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      5 * time.Second,
		MaxHeaderBytes:    16 << 10,
	}
	return part{
		name: "status socket",
		serve: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { server.Close() })
			defer stop()
			err := server.Serve(l)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
		drain: server.Shutdown,
	}
}

// askTimeout is how long a process may take to say its status.
const askTimeout = 5 * time.Second

// askStatus gets the status of the process behind a status socket. Its PID is
// what the kernel says, which may be followed by signals.
func askStatus(ctx context.Context, path string) (processStatus, error) {
	status, err := getStatus(ctx, path)
	if err != nil {
		return status, fmt.Errorf("ask %q: %w", path, err)
	}
	return status, nil
}

// getStatus makes the request by hand: another server may be there, which the
// client of package http would log.
func getStatus(ctx context.Context, path string) (status processStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return status, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://viablk/status", nil)
	if err != nil {
		return status, err
	}
	request.Close = true
	if err := request.Write(c); err != nil {
		return status, err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), request)
	if err != nil {
		return status, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return status, errors.New(response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return status, err
	}
	status.PID = nbd.ListenerPID(c)
	return status, nil
}

// adminSockets lists the status sockets in the runtime folder.
func adminSockets() ([]string, error) {
	entries, err := os.ReadDir(runtimeFolder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find running processes: %w", err)
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
