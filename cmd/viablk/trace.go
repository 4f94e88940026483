package main

import (
	"io"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// traceVIA is the value of the key log.trace that asks for VIA operations.
const traceVIA = "via"

// tracer writes a line per VIA operation for --trace via. A nil tracer writes
// none.
type tracer struct{ w io.Writer }

// newTracer returns the tracer that a configuration asks for.
func newTracer(c config.Log, w io.Writer) *tracer {
	if c.Trace != traceVIA {
		return nil
	}
	return &tracer{w}
}

// wrap returns p, or p with a trace whose lines begin with the role of this
// end.
func (t *tracer) wrap(p via.Provider, role string) via.Provider {
	if t == nil {
		return p
	}
	return hook.Trace(p, prefixWriter{t.w, role + " "})
}

// prefixWriter writes each line, which is one Write, behind a prefix and in one
// Write, so that lines of several processes do not mix.
type prefixWriter struct {
	w      io.Writer
	prefix string
}

func (p prefixWriter) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
