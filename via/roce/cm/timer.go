package cm

import (
	"container/heap"
	"time"
)

// never is later than every time.
const never = time.Duration(1<<63 - 1)

// timers is a heap of the connections by their next time.
type timers struct{ heap timerHeap }

type timerHeap []*connection

// due returns the next time of the connection.
func (c *connection) due() time.Duration { return min(c.retransmitAt, c.deadline) }

// first returns the earliest time.
func (t *timers) first() (time.Duration, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].due(), true
}

// set moves a connection to its position by its times.
func (t *timers) set(c *connection) {
	switch {
	case c.due() == never && c.timerIndex != 0:
		heap.Remove(&t.heap, c.timerIndex-1)
	case c.due() == never:
	case c.timerIndex != 0:
		heap.Fix(&t.heap, c.timerIndex-1)
	default:
		heap.Push(&t.heap, c)
	}
}

// clear removes a connection.
func (t *timers) clear(c *connection) {
	c.retransmitAt, c.deadline = never, never
	t.set(c)
}

func (a timerHeap) Len() int           { return len(a) }
func (a timerHeap) Less(i, j int) bool { return a[i].due() < a[j].due() }

func (a timerHeap) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].timerIndex, a[j].timerIndex = i+1, j+1
}

func (a *timerHeap) Push(x any) {
	c := x.(*connection)
	*a = append(*a, c)
	c.timerIndex = len(*a)
}

func (a *timerHeap) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	c.timerIndex = 0
	return c
}
