package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/viablk/viablk/initiator"
)

// pathDevice is a remote disk whose target may have several hosts.
type pathDevice interface {
	Paths() []initiator.PathStatus
	AddHost(host string) error
	RemoveHost(ctx context.Context, host string) error
}

// attachedPaths are the paths of the disk of an export.
type attachedPaths struct {
	Export string                 `json:"export"`
	Device string                 `json:"device,omitempty"` // of the kernel
	URI    string                 `json:"uri"`              // with which it was attached
	Paths  []initiator.PathStatus `json:"paths"`
}

// pathReport is what GET /v1/paths answers, and an element of what "viablk path
// ls" prints.
type pathReport struct {
	Schema string          `json:"schema"` // viablk.paths/v1
	PID    int             `json:"pid"`
	Disks  []attachedPaths `json:"disks"` // without those of NBD servers
}

// hostChange is the body of a request for one host more or less.
type hostChange struct {
	Export string `json:"export"`
	Host   string `json:"host"` // HOST, HOST:PORT, a URI, or as GET /v1/paths has it
}

// pathAdmin changes the hosts of attached disks.
type pathAdmin struct {
	disks  []attached
	kernel *kernelDevice // of the first disk; nil if there is none
}

// handle adds the routes of paths.
func (a pathAdmin) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/paths", func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, http.StatusOK, a.report())
	})
	mux.HandleFunc("POST /v1/paths", func(w http.ResponseWriter, r *http.Request) {
		a.change(w, r, func(_ context.Context, d pathDevice, host string) error { return d.AddHost(host) })
	})
	mux.HandleFunc("DELETE /v1/paths", func(w http.ResponseWriter, r *http.Request) {
		a.change(w, r, func(ctx context.Context, d pathDevice, host string) error { return d.RemoveHost(ctx, host) })
	})
}

func (a pathAdmin) report() pathReport {
	r := pathReport{Schema: "viablk.paths/v1", PID: os.Getpid(), Disks: []attachedPaths{}}
	for i, d := range a.disks {
		device, ok := d.remote.device.(pathDevice)
		if !ok {
			continue
		}
		p := attachedPaths{Export: d.Name, URI: d.remote.uri.String(), Paths: device.Paths()}
		if status := a.kernel.status(); status != nil && i == 0 {
			p.Device = status.Path
		}
		r.Disks = append(r.Disks, p)
	}
	return r
}

// change makes a change of hosts. To add one that is there, or to remove one
// that is not, is no error.
func (a pathAdmin) change(w http.ResponseWriter, r *http.Request, do func(context.Context, pathDevice, string) error) {
	document, ok := readDocument(w, r, maximumDocument)
	if !ok {
		return
	}
	var c hostChange
	if err := json.Unmarshal(document, &c); err != nil {
		answerError(w, http.StatusBadRequest, fmt.Errorf("the document is no change of a host: %w", err))
		return
	}
	d, device := a.find(c.Export)
	if d == nil {
		answerError(w, http.StatusNotFound, fmt.Errorf("no disk over VIA is the export %q", c.Export))
		return
	}
	address, err := d.remote.reach.host(c.Host)
	if err != nil {
		answerError(w, http.StatusUnprocessableEntity, err)
		return
	}
	ctx, done := changeContext(w, r)
	defer done()
	switch err = do(ctx, device, address); {
	case err == nil, errors.Is(err, initiator.ErrHostKnown), errors.Is(err, initiator.ErrHostUnknown):
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, initiator.ErrNoPaths):
		answerError(w, http.StatusUnprocessableEntity, err)
	default:
		answerError(w, http.StatusConflict, fmt.Errorf("%s: %w", c.Host, err))
	}
}

// find returns the disk of an export, nil if there is none over VIA.
func (a pathAdmin) find(export string) (*attached, pathDevice) {
	for i := range a.disks {
		if device, ok := a.disks[i].remote.device.(pathDevice); ok && a.disks[i].Name == export {
			return &a.disks[i], device
		}
	}
	return nil, nil
}
