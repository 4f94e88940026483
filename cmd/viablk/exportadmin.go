package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/reserve"
)

// Limits of calls that change exports.
const (
	maximumDocument = 64 << 10 // bytes, but for those of a successor
	maximumRemovals = 16       // calls at a time that wait for clients
	maximumDrain    = time.Hour
)

// servedExport is an export of a process with its settings.
type servedExport struct {
	config.Export
	Size    int64            `json:"size"` // bytes
	URIs    []string         `json:"uris"`
	Clients []reserve.Client `json:"holders"` // clients that have it open
	Removed bool             `json:"removed,omitempty"`
}

// exportSettingsReport is what GET /v1/exports answers.
type exportSettingsReport struct {
	Schema  string         `json:"schema"` // viablk.exports/v1
	Exports []servedExport `json:"exports"`
}

// exportAdmin serves the exports of a target to its administrator.
type exportAdmin struct {
	set     *exportSet
	exports func() []exportStatus
	waiting chan struct{} // one element for each removal that waits
}

func newExportAdmin(set *exportSet, exports func() []exportStatus) *exportAdmin {
	return &exportAdmin{set: set, exports: exports, waiting: make(chan struct{}, maximumRemovals)}
}

// handle adds the routes. The name of an export is in the query: it may be
// empty, and a path would lose its "//" and "..".
func (a *exportAdmin) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/exports", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, http.StatusOK, a.report()) })
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, http.StatusOK, a.set.configuration()) })
	mux.HandleFunc("POST /v1/exports", a.add)
	mux.HandleFunc("PATCH /v1/exports", a.alter)
	mux.HandleFunc("DELETE /v1/exports", a.remove)
}

// report lists the exports, and after them those that were removed and that
// clients still have.
func (a *exportAdmin) report() exportSettingsReport {
	r := exportSettingsReport{Schema: "viablk.exports/v1", Exports: []servedExport{}}
	uris := make(map[string][]string)
	for _, x := range a.exports() {
		uris[x.Name] = x.URIs
	}
	add := func(d disk, removed bool) {
		x := servedExport{Export: d.Export.Redacted(), Size: d.device.Info().Size, URIs: []string{}, Clients: d.reservations.Clients(), Removed: removed}
		if !removed {
			x.URIs = append(x.URIs, uris[d.Name]...)
		}
		r.Exports = append(r.Exports, x)
	}
	for _, d := range a.set.current() {
		add(d, false)
	}
	for _, d := range a.set.leaving() {
		add(d, true)
	}
	return r
}

// leaving returns the disks of removed exports that clients still have.
func (s *exportSet) leaving() (disks []disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.retired {
		disks = append(disks, r.disk)
	}
	return disks
}

// readDocument reads the body of a request of most bytes, or refuses it.
func readDocument(w http.ResponseWriter, r *http.Request, most int64) ([]byte, bool) {
	document, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		answerError(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the document is longer than %d bytes", most))
		return nil, false
	}
	if err != nil {
		answerError(w, http.StatusBadRequest, err)
		return nil, false
	}
	return document, true
}

// namesExport reports whether a request names an export, or refuses it: without
// a name it would concern the export whose name is empty.
func namesExport(w http.ResponseWriter, r *http.Request) bool {
	if n := len(r.URL.Query()["name"]); n != 1 {
		answerError(w, http.StatusBadRequest, fmt.Errorf("the query has %d names of exports: give one, as ?name=NAME", n))
		return false
	}
	return true
}

// changeTime is how long a change may take: it opens disks.
const changeTime = time.Minute

// changeContext gives a request the time of a change. The caller calls done.
func changeContext(w http.ResponseWriter, r *http.Request) (ctx context.Context, done context.CancelFunc) {
	extendDeadline(w, changeTime)
	return context.WithTimeout(r.Context(), changeTime)
}

func (a *exportAdmin) add(w http.ResponseWriter, r *http.Request) {
	document, ok := readDocument(w, r, maximumDocument)
	if !ok {
		return
	}
	ctx, done := changeContext(w, r)
	defer done()
	x, err := config.DecodeExport(document)
	added := false
	if err == nil {
		added, err = a.set.add(ctx, x)
	}
	switch {
	case err != nil:
		answerChange(w, err)
	case added:
		answerJSON(w, http.StatusCreated, x)
	default:
		answerJSON(w, http.StatusOK, x)
	}
}

func (a *exportAdmin) alter(w http.ResponseWriter, r *http.Request) {
	if !namesExport(w, r) {
		return
	}
	patch, ok := readDocument(w, r, maximumDocument)
	if !ok {
		return
	}
	ctx, done := changeContext(w, r)
	defer done()
	x, err := a.set.alter(ctx, r.URL.Query().Get("name"), patch)
	if err != nil {
		answerChange(w, err)
		return
	}
	answerJSON(w, http.StatusOK, x)
}

func (a *exportAdmin) remove(w http.ResponseWriter, r *http.Request) {
	if !namesExport(w, r) {
		return
	}
	how, err := removalOf(r)
	if err != nil {
		answerError(w, http.StatusBadRequest, err)
		return
	}
	select {
	case a.waiting <- struct{}{}:
		defer func() { <-a.waiting }()
	default:
		answerError(w, http.StatusServiceUnavailable, fmt.Errorf("%d exports are being removed: try again", maximumRemovals))
		return
	}
	extendDeadline(w, changeTime+how.drain+cutTime+closeTime)
	if err := a.set.remove(r.Context(), r.URL.Query().Get("name"), how); err != nil {
		answerChange(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// removalOf reads the query of a removal.
func removalOf(r *http.Request) (how removal, err error) {
	query := r.URL.Query()
	if text := query.Get("drain"); text != "" {
		if how.drain, err = time.ParseDuration(text); err != nil || how.drain < 0 || how.drain > maximumDrain {
			return how, fmt.Errorf("drain: %q is not a duration up to %v, such as 30s", text, maximumDrain)
		}
	}
	switch text := query.Get("force"); text {
	case "", "false":
	case "true":
		how.force = true
	default:
		return how, fmt.Errorf("force: %q is not true or false", text)
	}
	return how, nil
}

// answerChange answers a request for a change that was not made.
func answerChange(w http.ResponseWriter, err error) {
	var now *conflictError
	switch {
	case errors.Is(err, errNoExport):
		answerError(w, http.StatusNotFound, err)
	case errors.As(err, &now), errors.Is(err, backend.ErrLocked), errors.Is(err, errDraining), errors.Is(err, errNothingToReload):
		answerError(w, http.StatusConflict, err)
	case errors.Is(err, errChanging):
		answerError(w, http.StatusServiceUnavailable, err)
	default:
		answerProblems(w, err)
	}
}
