// Package contain confines panics: the goroutine of a connection, or of a
// request, catches its own, and the process goes on without what that goroutine
// served. State that several of them share is different: a panic amid a change
// of it ends the process.
package contain

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/ratelog"
)

// Panic is a panic that was caught. It is an error without the stack.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

var (
	caught atomic.Uint64
	lines  ratelog.Peers
)

// Count returns how many panics the process has caught.
func Count() uint64 { return caught.Load() }

// Caught counts a panic, where value is what recover returned in the deferred
// function that calls Caught. A fault of an address, other than that of nil, is
// not caught but ends the process: memory was written or unmapped that should
// not have been.
func Caught(value any) *Panic {
	stack := debug.Stack()
	if _, ok := value.(interface{ Addr() uintptr }); ok {
		end(value, stack)
	}
	caught.Add(1)
	return &Panic{Value: value, Stack: stack}
}

// Log logs the panic with its stack, within a rate limit for all panics of the
// process. A nil log is [slog.Default].
func (p *Panic) Log(log *slog.Logger, text string, args ...any) {
	if log == nil {
		log = slog.Default()
	}
	args = append([]any{"event", "panic"}, args...)
	args = append(args, "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
	lines.Log(time.Now(), "panics", log, slog.LevelError, text, args...)
}

// Call calls f, and returns its panic as an error, which it logs.
func Call(log *slog.Logger, text string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			p := Caught(value)
			p.Log(log, text)
			err = p
		}
	}()
	return f()
}

// Shared is deferred by functions that change state which connections share.
// If the function panics, Shared ends the process, because the state may be
// half changed and its lock held: no caller could go on with it.
func Shared() {
	if value := recover(); value != nil {
		end(value, debug.Stack())
	}
}

// end ends the process by a panic that no deferred function can recover. It
// does not return.
func end(value any, stack []byte) {
	go panic(fmt.Sprintf("%v: connections share the state: the process ends\n\n%s", value, stack))
	select {}
}
