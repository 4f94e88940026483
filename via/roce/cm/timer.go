package cm

import (
	"container/heap"
	"time"
)

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// timers are the connections that wait for a time, the nearest first.
type timers struct{ heap alarms }

type alarms []*connection

// due returns when something is to be done about the connection.
func (c *connection) due() time.Duration { return min(c.again, c.deadline) }

// first returns the nearest time.
func (t *timers) first() (time.Duration, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].due(), true
}

// set puts a connection where its times belong.
func (t *timers) set(c *connection) {
	switch {
	case c.due() == never && c.alarm != 0:
		heap.Remove(&t.heap, c.alarm-1)
	case c.due() == never:
	case c.alarm != 0:
		heap.Fix(&t.heap, c.alarm-1)
	default:
		heap.Push(&t.heap, c)
	}
}

// clear forgets the times of a connection.
func (t *timers) clear(c *connection) {
	c.again, c.deadline = never, never
	t.set(c)
}

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].due() < a[j].due() }

func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].alarm, a[j].alarm = i+1, j+1
}

func (a *alarms) Push(x any) {
	c := x.(*connection)
	*a = append(*a, c)
	c.alarm = len(*a)
}

func (a *alarms) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	c.alarm = 0
	return c
}
