package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progressAfter is how long a run takes until people want to see that it goes
// on.
const progressAfter = time.Second

// progress is a line on a terminal that is written again and again. It is of
// one goroutine.
type progress struct {
	w     io.Writer // nil if there is no terminal
	start time.Time
	shown bool
}

// newProgress returns the line of this run.
func (a *app) newProgress() *progress {
	p := &progress{start: time.Now()}
	if isTerminal(a.stderr) {
		p.w = a.stderr
	}
	return p
}

// isTerminal reports whether what is written to w appears on a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// stage begins a stage of the run, whose remaining time is its own, and returns
// what shows its progress.
func (p *progress) stage(what fmt.Stringer) func(done, total int) {
	p.start = time.Now()
	return func(done, total int) { p.show(done, total, what) }
}

// show says what is measured now.
func (p *progress) show(done, total int, what fmt.Stringer) {
	elapsed := time.Since(p.start)
	if p.w == nil || elapsed < progressAfter {
		return
	}
	p.shown = true
	left := time.Duration(float64(elapsed) / float64(max(done, 1)) * float64(total-done))
	fmt.Fprintf(p.w, "\r\x1b[K%3d%%  %v  about %v left", 100*done/total, what, left.Round(time.Second))
}

// clear removes the line.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
