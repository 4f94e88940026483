package main

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

func TestTracerWritesLinesOfItsRole(t *testing.T) {
	var out bytes.Buffer
	p := newTracer(config.Log{Trace: traceVIA}, &out).wrap(shm.New(shm.Options{}), "target")
	nic, err := via.OpenNic(p, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := nic.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "target dev 1 open shm\n") {
		t.Errorf("got %q", out.String())
	}
}

func TestTraceOffLeavesTheProviderAlone(t *testing.T) {
	p := shm.New(shm.Options{})
	if got := newTracer(config.Default().Log, nil).wrap(p, "target"); reflect.TypeOf(got) != reflect.TypeOf(p) {
		t.Errorf("the provider is wrapped in %T although no trace is asked for", got)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPrefixWriterReportsErrors(t *testing.T) {
	if n, err := (prefixWriter{brokenWriter{}, "x "}).Write([]byte("line\n")); n != 0 || !errors.Is(err, errBroken) {
		t.Errorf("got %d, %v", n, err)
	}
}
