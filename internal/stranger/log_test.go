package stranger

import (
	"testing"
	"time"
)

func TestOneLineASecond(t *testing.T) {
	var l Log
	now := time.Now()
	for i, c := range []struct {
		after  time.Duration
		hidden int
		due    bool
	}{
		{0, 0, true},
		{0, 0, false},
		{pause - 1, 0, false},
		{pause, 2, true},
		{2*pause - 1, 0, false},
		{5 * pause, 1, true},
		{6 * pause, 0, true},
	} {
		if hidden, due := l.due(now.Add(c.after)); hidden != c.hidden || due != c.due {
			t.Errorf("%d: %d hidden, due %v, want %d, %v", i, hidden, due, c.hidden, c.due)
		}
	}
}
