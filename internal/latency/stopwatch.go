package latency

import "time"

// Stopwatch measures the requests of one loop with about one reading of the
// clock in an iteration: requests that arrive in one begin at its reading, and
// those answered end at the next one, which is that of the next iteration in
// which one arrives or, if the loop has nothing to do, one that it makes before
// it waits.
//
//	for {
//		began := w.Now() // if a request has arrived
//		w.End(r, op, began, given)
//		w.Expire()
//		w.At(now) // before it waits
//	}
type Stopwatch struct {
	clock func() time.Duration
	now   time.Duration
	valid bool // now is a reading of this iteration
	ended [64]ended
	n     int
}

// ended is an answered request whose end is the next reading.
type ended struct {
	recorder     *Recorder
	operation    Operation
	began, given time.Duration
}

// NotGiven is when a request was given to the backend that was not.
const NotGiven time.Duration = -1

// Start begins the use of a clock.
func (w *Stopwatch) Start(clock func() time.Duration) { w.clock, w.valid = clock, false }

// Stop ends the use of the clock; all requests end.
func (w *Stopwatch) Stop() {
	w.Flush()
	w.clock = nil
}

// Flush ends the requests that are answered, before the loop waits if it has
// read no clock.
func (w *Stopwatch) Flush() {
	if w.n > 0 {
		w.At(w.clock())
	}
}

// Now returns the reading of this iteration.
func (w *Stopwatch) Now() time.Duration {
	if !w.valid {
		w.At(w.clock())
	}
	return w.now
}

// At makes a reading of the caller's that of the iteration.
func (w *Stopwatch) At(now time.Duration) {
	w.now, w.valid = now, true
	if w.n > 0 {
		w.finish(now)
	}
}

// Expire ends an iteration: the next one reads the clock.
func (w *Stopwatch) Expire() { w.valid = false }

// End notes that a request was answered, which began at a reading and, unless
// given is NotGiven, was given to the backend at another.
func (w *Stopwatch) End(r *Recorder, o Operation, began, given time.Duration) {
	w.ended[w.n] = ended{r, o, began, given}
	if w.n++; w.n == len(w.ended) {
		w.Flush()
	}
}

// finish counts the requests that are answered.
func (w *Stopwatch) finish(now time.Duration) {
	for i := range w.ended[:w.n] {
		e := &w.ended[i]
		e.recorder.Add(Request, e.operation, now-e.began)
		if e.given != NotGiven {
			e.recorder.Add(Backend, e.operation, now-e.given)
		}
	}
	w.n = 0
}
