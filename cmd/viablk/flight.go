package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"runtime/trace"
	"strconv"
	"time"
)

// Limits of the flight recorder.
const (
	flightTime  = 10 * time.Second // that it remembers at least, if the bytes suffice
	flightBytes = 16 << 20         // of its window, about
)

var (
	errFlightOff  = errors.New("the flight recorder is off: POST /debug/flight starts it")
	errFlightBusy = errors.New("another call uses the flight recorder: try again")
)

// flightRecorder keeps the last seconds of the Go runtime's execution trace,
// from the time that the user of the process starts it. The goroutine with the
// element of busy uses it.
type flightRecorder struct {
	busy     chan struct{}
	recorder *trace.FlightRecorder // nil: off
}

func newFlightRecorder() *flightRecorder { return &flightRecorder{busy: make(chan struct{}, 1)} }

// handle adds the routes, which ownerChanges keeps to root and the user of the
// process.
func (f *flightRecorder) handle(mux *http.ServeMux) {
	for method, do := range map[string]func(http.ResponseWriter){
		http.MethodPost: f.start, http.MethodGet: f.write, http.MethodDelete: f.stop,
	} {
		mux.HandleFunc(method+" /debug/flight", func(w http.ResponseWriter, _ *http.Request) {
			select {
			case f.busy <- struct{}{}:
				defer func() { <-f.busy }()
				do(w)
			default:
				answerError(w, http.StatusServiceUnavailable, errFlightBusy)
			}
		})
	}
}

// start starts the recorder. To start it again is no error.
func (f *flightRecorder) start(w http.ResponseWriter) {
	if f.recorder == nil {
		r := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: flightTime, MaxBytes: flightBytes})
		if err := r.Start(); err != nil {
			answerError(w, http.StatusConflict, fmt.Errorf("start the flight recorder: %w", err))
			return
		}
		f.recorder = r
	}
	w.WriteHeader(http.StatusNoContent)
}

// write answers with what the recorder has. It does not wait for the client
// while it takes that.
func (f *flightRecorder) write(w http.ResponseWriter) {
	if f.recorder == nil {
		answerError(w, http.StatusConflict, errFlightOff)
		return
	}
	var window bytes.Buffer
	if _, err := f.recorder.WriteTo(&window); err != nil {
		answerError(w, http.StatusInternalServerError, fmt.Errorf("read the flight recorder: %w", err))
		return
	}
	extendDeadline(w, eventTime)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(window.Len()))
	_, _ = window.WriteTo(w) // an error is a client that went away
}

// stop stops the recorder and forgets what it has.
func (f *flightRecorder) stop(w http.ResponseWriter) {
	f.end()
	w.WriteHeader(http.StatusNoContent)
}

func (f *flightRecorder) end() {
	if f.recorder != nil {
		f.recorder.Stop()
		f.recorder = nil
	}
}

// close stops the recorder, after the call that uses it.
func (f *flightRecorder) close() {
	f.busy <- struct{}{}
	f.end()
}
