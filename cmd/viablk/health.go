package main

import (
	"net/http"
	"time"
)

// health says whether a process is alive and whether clients can use its disks,
// in the same way at the status socket and at the metrics listener.
type health struct {
	svc   *service
	cache *statusCache
	away  time.Duration // that a target may be away
}

// handle adds the routes.
func (h *health) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", h.serveHealth)
	mux.HandleFunc("GET /readyz", h.serveReady)
}

// serveHealth says whether the process can tell its state within a second.
func (h *health) serveHealth(w http.ResponseWriter, r *http.Request) {
	if _, err := h.cache.read(r.Context()); err != nil {
		answerError(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // an error is a client that went away
}

// serveReady says whether clients can use the disks, and why not.
func (h *health) serveReady(w http.ResponseWriter, r *http.Request) {
	d, err := h.cache.read(r.Context())
	if err != nil {
		answerError(w, http.StatusServiceUnavailable, err)
		return
	}
	ready := newReadiness(&d.status, h.svc.ready.Load(), h.svc.draining.Load(), h.svc.failedReload(), h.away)
	code := http.StatusOK
	if !ready.Ready {
		code = http.StatusServiceUnavailable
	}
	answerJSON(w, code, ready)
}
