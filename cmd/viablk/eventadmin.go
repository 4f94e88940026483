package main

import (
	"fmt"
	"net/http"
)

// handleEvents adds the route of the events: the last lines of the log, and
// those that come.
func (s *service) handleEvents(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		follow := true
		switch text := r.URL.Query().Get("follow"); text {
		case "", "true":
		case "false":
			follow = false
		default:
			answerError(w, http.StatusBadRequest, fmt.Errorf("follow: %q is not true or false", text))
			return
		}
		if err := s.events.Stream(w, r, r.Header.Get("Last-Event-ID"), follow); err != nil {
			answerError(w, http.StatusServiceUnavailable, err)
		}
	})
}
