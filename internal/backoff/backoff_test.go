package backoff

import (
	"crypto/rand"
	"errors"
	"testing"
	"testing/iotest"
	"time"
)

// TestBackoff: the pauses are all over their limits, which double up to the
// longest, also when that grows; without random numbers they are the limits.
func TestBackoff(t *testing.T) {
	const most, shorter = time.Second, 150 * time.Millisecond
	var least, longest [8]time.Duration
	for range 400 {
		b := Backoff{Random: rand.Reader}
		for i := range longest {
			d := b.Next(most)
			if limit := min(firstDelay<<i, most); d <= 0 || d > limit {
				t.Fatalf("pause %d is %v of %v", i, d, limit)
			}
			longest[i] = max(longest[i], d)
			if least[i] == 0 {
				least[i] = d
			}
			least[i] = min(least[i], d)
		}
	}
	for i := range longest {
		if limit := min(firstDelay<<i, most); least[i] > limit/10 || longest[i] < limit*9/10 {
			t.Errorf("pause %d is %v to %v of %v", i, least[i], longest[i], limit)
		}
	}
	b := Backoff{Random: iotest.ErrReader(errors.New("none"))}
	for i, want := range []time.Duration{20, 40, 80, 150, 150} {
		if d := b.Next(shorter); d != want*time.Millisecond {
			t.Errorf("pause %d is %v", i, d)
		}
	}
	if d := b.Next(most); d != 2*shorter {
		t.Errorf("the first longer pause is %v", d)
	}
	if d := b.Next(time.Millisecond); d != time.Millisecond {
		t.Errorf("the first shorter pause is %v", d)
	}
}
