package ratelog

import (
	"testing"
	"time"
)

func TestOneLinePerSecond(t *testing.T) {
	var l Log
	now := time.Now()
	for i, c := range []struct {
		after      time.Duration
		suppressed int
		allowed    bool
	}{
		{0, 0, true},
		{0, 0, false},
		{interval - 1, 0, false},
		{interval, 2, true},
		{2*interval - 1, 0, false},
		{5 * interval, 1, true},
		{6 * interval, 0, true},
	} {
		if suppressed, allowed := l.allow(now.Add(c.after)); suppressed != c.suppressed || allowed != c.allowed {
			t.Errorf("%d: %d suppressed, allowed %v, want %d, %v", i, suppressed, allowed, c.suppressed, c.allowed)
		}
	}
}
