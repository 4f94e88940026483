package loop

import "time"

// timers are entries in a heap, the earliest deadline first. Each knows its
// place.
type timers []*entry

// next returns the earliest deadline, or false if there is none.
func (t timers) next() (time.Duration, bool) {
	if len(t) == 0 {
		return 0, false
	}
	return t[0].deadline, true
}

// set gives e a deadline.
func (t *timers) set(e *entry, deadline time.Duration) {
	e.deadline = deadline
	if e.timer < 0 {
		e.timer = len(*t)
		*t = append(*t, e)
	}
	t.down(t.up(e.timer))
}

// unset takes the deadline from e, if it has one.
func (t *timers) unset(e *entry) {
	i := e.timer
	if i < 0 {
		return
	}
	e.timer = -1
	last := len(*t) - 1
	moved := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	if i < last {
		(*t)[i], moved.timer = moved, i
		t.down(t.up(i))
	}
}

func (t timers) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if t[parent].deadline <= t[i].deadline {
			break
		}
		t.swap(i, parent)
		i = parent
	}
	return i
}

func (t timers) down(i int) {
	for {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(t) && t[child].deadline < t[least].deadline {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swap(i, least)
		i = least
	}
}

func (t timers) swap(i, k int) {
	t[i], t[k] = t[k], t[i]
	t[i].timer, t[k].timer = i, k
}
