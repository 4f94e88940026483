package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestDrainOfCalls: a drain waits for a request in progress, which gets its
// answer, and not for clients that send nothing, or half of a request.
func TestDrainOfCalls(t *testing.T) {
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newPacedListener(inner, 8, pace{burst: 8})
	began := make(chan struct{})
	server := &http.Server{Handler: l.noted(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-l.closed // the drain begins
		time.Sleep(4 * callWait)
		_, _ = io.WriteString(w, "the answer")
	}))}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	dial := func(text string) net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c
	}
	dial("")
	dial("GET / HTTP/1.1\r\nHo")
	waits := dial("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	<-began
	if err := l.drain(context.Background()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(server.Close(), l.Close()); err != nil { // as a server that has not noticed the drain
		t.Error(err)
	}
	answer, err := io.ReadAll(waits)
	if err != nil || !strings.HasSuffix(string(answer), "the answer") {
		t.Errorf("%q, %v", answer, err)
	}
	if err := l.ended(context.Background(), <-served); err != nil {
		t.Error(err)
	}
}
