package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
)

// scrubRate is how many bytes per second a scrub reads unless it is told.
const scrubRate = 100 * config.MiB

// scrubCall is the body of a request to scrub an export.
type scrubCall struct {
	Rate config.Size `json:"rate"` // per second; 0: unlimited
}

// scrubReport is what POST and GET /v1/scrubs answer, and what "viablk scrub"
// prints.
type scrubReport struct {
	Schema string `json:"schema"` // viablk.scrub/v1
	Export string `json:"export"`
	backend.ScrubStatus
}

// scrubAdmin serves the scrubs of a target to its administrator.
type scrubAdmin struct{ set *exportSet }

// handle adds the routes. The name of an export is in the query, as in those of
// exports.
func (a scrubAdmin) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/scrubs", a.show)
	mux.HandleFunc("POST /v1/scrubs", a.start)
	mux.HandleFunc("DELETE /v1/scrubs", a.stop)
}

func (a scrubAdmin) show(w http.ResponseWriter, r *http.Request) {
	if !namesExport(w, r) {
		return
	}
	report, err := a.set.scrubOf(r.URL.Query().Get("name"))
	if err != nil {
		answerScrub(w, err)
		return
	}
	answerJSON(w, http.StatusOK, report)
}

func (a scrubAdmin) start(w http.ResponseWriter, r *http.Request) {
	if !namesExport(w, r) {
		return
	}
	document, ok := readDocument(w, r, maximumDocument)
	if !ok {
		return
	}
	rate, err := scrubRateOf(document)
	if err != nil {
		answerError(w, http.StatusBadRequest, err)
		return
	}
	ctx, done := changeContext(w, r)
	defer done()
	report, err := a.set.scrub(ctx, r.URL.Query().Get("name"), rate)
	if err != nil {
		answerScrub(w, err)
		return
	}
	answerJSON(w, http.StatusAccepted, report)
}

// stop stops a scrub and answers at its end. To stop what does not run is no
// error.
func (a scrubAdmin) stop(w http.ResponseWriter, r *http.Request) {
	if !namesExport(w, r) {
		return
	}
	ctx, done := changeContext(w, r)
	defer done()
	if err := a.set.stopScrub(ctx, r.URL.Query().Get("name")); err != nil {
		answerScrub(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// scrubRateOf reads the body of a request to scrub, which may be empty.
func scrubRateOf(document []byte) (config.Size, error) {
	c := scrubCall{Rate: scrubRate}
	d := json.NewDecoder(bytes.NewReader(document))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	switch {
	case errors.Is(err, io.EOF):
		return c.Rate, nil
	case err == nil && d.More():
		err = errors.New("more follows it")
	}
	if err != nil {
		return 0, fmt.Errorf(`the document is not such as {"rate": "100MiB"}: %w`, err)
	}
	return c.Rate, nil
}

// errUnfinishedScrub is that a scrub goes on after the time of a call.
var errUnfinishedScrub = errors.New("the disk does not answer: the scrub stops when it does")

// answerScrub answers a request of a scrub that fails.
func answerScrub(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, backend.ErrNoChecksums):
		answerError(w, http.StatusUnprocessableEntity, err)
	case errors.Is(err, errUnfinishedScrub):
		answerError(w, http.StatusServiceUnavailable, err)
	default:
		answerChange(w, err)
	}
}

// exported returns the disk of an export.
func (s *exportSet) exported(name string) (disk, error) {
	disks := s.current()
	i := slices.IndexFunc(disks, func(d disk) bool { return d.Name == name })
	if i < 0 {
		return disk{}, errNoExport
	}
	return disks[i], nil
}

// withoutChecksums says what to do about an export that has none.
func withoutChecksums(name string) error {
	return fmt.Errorf("export %q: %w: export it as crc:DISK,SUMS", name, backend.ErrNoChecksums)
}

// scrubOf returns the state of the scrubs of an export.
func (s *exportSet) scrubOf(name string) (r scrubReport, err error) {
	d, err := s.exported(name)
	if err != nil {
		return r, err
	}
	status, ok := backend.ScrubOf(d.opened)
	if !ok {
		return r, withoutChecksums(name)
	}
	return scrubReport{"viablk.scrub/v1", name, status}, nil
}

// scrub starts a scrub of an export. It is a change, so that none is of a disk
// that another one removes, and stops when the process drains.
func (s *exportSet) scrub(ctx context.Context, name string, rate config.Size) (r scrubReport, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return r, err
	}
	defer end()
	d, err := s.exported(name)
	if err != nil {
		return r, err
	}
	err = backend.StartScrub(d.opened, backend.ScrubOptions{Rate: int64(rate), Until: s.ending})
	switch {
	case errors.Is(err, backend.ErrNoChecksums):
		return r, withoutChecksums(name)
	case err != nil:
		return r, conflict("export %q: %v: wait for it, or stop it", name, err)
	}
	return s.scrubOf(name)
}

// stopScrub stops the scrub of an export, if one runs, and waits for its end.
func (s *exportSet) stopScrub(ctx context.Context, name string) error {
	d, err := s.exported(name)
	if err != nil {
		return err
	}
	ended, err := backend.StopScrub(d.opened)
	if err != nil {
		return withoutChecksums(name)
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errUnfinishedScrub
	}
}
