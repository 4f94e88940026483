package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"runtime/trace"
	"testing"
)

// TestFlightRecorder: the recorder is off until it is started, then has what
// happened before it was asked, and is off behind its end.
func TestFlightRecorder(t *testing.T) {
	f := newFlightRecorder()
	mux := http.NewServeMux()
	f.handle(mux)
	call := func(method string, want int) []byte {
		t.Helper()
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, "/debug/flight", nil))
		if w.Code != want {
			t.Errorf("%s: got %d: %s", method, w.Code, w.Body)
		}
		return w.Body.Bytes()
	}
	call(http.MethodGet, http.StatusConflict)
	call(http.MethodDelete, http.StatusNoContent)
	if trace.IsEnabled() {
		t.Error("it records before it was started")
	}
	call(http.MethodPost, http.StatusNoContent)
	trace.Log(t.Context(), "viablk", "what happened before")
	call(http.MethodPost, http.StatusNoContent)
	for range 2 {
		if got := call(http.MethodGet, http.StatusOK); !bytes.HasPrefix(got, []byte("go 1.")) || !bytes.Contains(got, []byte("what happened before")) {
			t.Errorf("%d bytes begin with %.16q", len(got), got)
		}
	}
	f.busy <- struct{}{}
	call(http.MethodGet, http.StatusServiceUnavailable)
	<-f.busy
	call(http.MethodDelete, http.StatusNoContent)
	call(http.MethodGet, http.StatusConflict)
	call(http.MethodPost, http.StatusNoContent)
	f.close()
	if trace.IsEnabled() {
		t.Error("it records behind the end")
	}
	call(http.MethodPost, http.StatusServiceUnavailable)
}

// TestFlightIsPrivate: only the user of the process records and reads.
func TestFlightIsPrivate(t *testing.T) {
	mux := http.NewServeMux()
	newFlightRecorder().handle(mux)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		w := httptest.NewRecorder()
		ownerChanges(mux).ServeHTTP(w, httptest.NewRequest(method, "/debug/flight", nil))
		if w.Code != http.StatusForbidden {
			t.Errorf("%s of another user: got %d", method, w.Code)
		}
	}
}
