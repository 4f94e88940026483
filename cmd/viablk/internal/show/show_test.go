package show

import (
	"testing"
	"time"
)

// TestFigures: a figure is as exact as its column has room for, and what is
// not zero does not look like zero.
func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Rate(0), "0"},
		{Rate(0.01), "0.1"},
		{Rate(0.1), "0.1"},
		{Rate(9.94), "9.9"},
		{Rate(9.96), "10"},
		{Rate(99_999.4), "99999"},
		{Rate(123_456), "123.5k"},
		{Megabytes(0), "0"},
		{Megabytes(1), "0.01"},
		{Megabytes(4.2e6), "4.20"},
		{Megabytes(42e6), "42.0"},
		{Megabytes(99.96e6), "100"},
		{Megabytes(12_345e6), "12345"},
		{Percent(-1), "-"},
		{Percent(0.996), "100"},
		{Age(119 * time.Second), "119s"},
		{Age(2 * time.Minute), "2m"},
		{Age(999 * 24 * time.Hour), "999d"},
		{Count(99_999), "99999"},
		{Count(999_960), "1.0M"},
		{Text(""), "-"},
		{Text("a\x1b[2J"), `"a\x1b[2J"`},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
