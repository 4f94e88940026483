// Package show formats names and figures in few letters, for terminals and
// pages.
package show

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Text quotes text from outside that would disturb a terminal or a table.
func Text(s string) string {
	if s == "" {
		return "-"
	}
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// Age formats how long something lasts, in at most four letters up to 999 days.
func Age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// Count formats a counter in at most six letters.
func Count(n uint64) string {
	if n < 100_000 {
		return strconv.FormatUint(n, 10)
	}
	const units = "kMGTPE"
	f, i := float64(n), -1
	for f >= 999.95 {
		f /= 1000
		i++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + units[i:i+1]
}

// Rate formats events in a second in at most six letters. A rate that is not
// zero does not look like zero.
func Rate(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 9.95:
		return strconv.FormatFloat(max(r, 0.1), 'f', 1, 64)
	}
	return Count(uint64(math.Round(r)))
}

// Megabytes formats bytes in a second as MB, 10⁶ bytes.
func Megabytes(r float64) string {
	switch mb := r / 1e6; {
	case r == 0:
		return "0"
	case mb < 9.995:
		return strconv.FormatFloat(max(mb, 0.01), 'f', 2, 64)
	case mb < 99.95:
		return strconv.FormatFloat(mb, 'f', 1, 64)
	default:
		return strconv.FormatFloat(mb, 'f', 0, 64)
	}
}

// Percent formats a share without its sign; a negative one is not known.
func Percent(share float64) string {
	if share < 0 {
		return "-"
	}
	return strconv.FormatFloat(100*share, 'f', 0, 64)
}
