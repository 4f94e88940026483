package simulation

import "time"

// timer is something that happens at a time.
type timer struct {
	index int // in the heap, from 1; 0 is not set
	call  func()
}

// timers are those that are set, in a heap with four branches, the next first.
type timers struct{ heap []alarm }

// alarm is the place of a timer in the heap.
type alarm struct {
	at    time.Duration // since epoch
	tie   uint32        // orders alarms of the same time
	timer *timer
}

func (a *alarm) before(b *alarm) bool {
	return a.at < b.at || a.at == b.at && a.tie < b.tie
}

// next returns the time of the first timer, or never.
func (h *timers) next() time.Duration {
	if len(h.heap) == 0 {
		return never
	}
	return h.heap[0].at
}

// set sets a timer, again if it is set.
func (h *timers) set(t *timer, at time.Duration, tie uint32) {
	i := t.index - 1
	if i < 0 {
		i = len(h.heap)
		h.heap = append(h.heap, alarm{})
	}
	h.place(i, alarm{at, tie, t})
}

// unset stops a timer. It may have fired.
func (h *timers) unset(t *timer) {
	if t == nil || t.index == 0 {
		return
	}
	i, last := t.index-1, len(h.heap)-1
	t.index = 0
	moved := h.heap[last]
	h.heap[last] = alarm{}
	h.heap = h.heap[:last]
	if i < last {
		h.place(i, moved)
	}
}

// fire takes the first timer and calls it.
func (h *timers) fire() {
	t := h.heap[0].timer
	h.unset(t)
	t.call()
}

// place puts an alarm into the free place i, or where it belongs instead.
func (h *timers) place(i int, a alarm) {
	for i > 0 {
		above := (i - 1) / 4
		if !a.before(&h.heap[above]) {
			break
		}
		h.move(above, i)
		i = above
	}
	for {
		first, end := 4*i+1, min(4*i+5, len(h.heap))
		if first >= end {
			break
		}
		least := first
		for k := first + 1; k < end; k++ {
			if h.heap[k].before(&h.heap[least]) {
				least = k
			}
		}
		if !h.heap[least].before(&a) {
			break
		}
		h.move(least, i)
		i = least
	}
	h.heap[i], a.timer.index = a, i+1
}

func (h *timers) move(from, to int) {
	h.heap[to] = h.heap[from]
	h.heap[to].timer.index = to + 1
}
