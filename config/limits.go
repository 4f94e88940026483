package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits bound what is asked of an export. Zero limits nothing.
type Limits struct {
	// IOPS are requests per second. Flushes do not count.
	IOPS int `mapstructure:"iops"`

	// Bandwidth is bytes per second, of reads and writes together.
	Bandwidth Size `mapstructure:"bandwidth"`

	// Burst is how much of what was not used is kept, as the time in which it
	// could have been. Zero means 20 ms.
	Burst time.Duration `mapstructure:"burst"`
}

// The bounds of limits: below a slip of the unit is likely, above a request
// costs less than clocks show.
const (
	maximumIOPS      = 100_000_000
	minimumBandwidth = 1 * KiB
	maximumBandwidth = 1 * PiB
	maximumBurst     = time.Minute
)

// Limited reports whether there is a limit.
func (l Limits) Limited() bool { return l.IOPS != 0 || l.Bandwidth != 0 }

// MarshalJSON writes the limits as a file has them.
func (l Limits) MarshalJSON() ([]byte, error) {
	written := make(map[string]any)
	if l.IOPS != 0 {
		written["iops"] = l.IOPS
	}
	if l.Bandwidth != 0 {
		written["bandwidth"] = l.Bandwidth.String()
	}
	if l.Burst != 0 {
		written["burst"] = l.Burst.String()
	}
	return json.Marshal(written)
}

// validate reports why the limits, whose key is given, cannot hold.
func (l Limits) validate(key string) error {
	switch {
	case l.IOPS < 0 || l.IOPS > maximumIOPS:
		return fmt.Errorf("%s.iops is %d, not in 1…%d", key, l.IOPS, maximumIOPS)
	case l.Bandwidth != 0 && (l.Bandwidth < minimumBandwidth || l.Bandwidth > maximumBandwidth):
		return fmt.Errorf("%s.bandwidth is %v, not in %v…%v bytes per second", key, l.Bandwidth, minimumBandwidth, maximumBandwidth)
	case l.Burst < 0 || l.Burst > maximumBurst:
		return fmt.Errorf("%s.burst is %v, not in 0…%v", key, l.Burst, maximumBurst)
	case l.Burst != 0 && !l.Limited():
		return fmt.Errorf("%s.burst is of no use without iops or bandwidth", key)
	}
	return nil
}

// limitPrefix begins a specification with limits.
const limitPrefix = "limit:"

// cutLimits reads the limits in front of the disk in the short form of an
// export:
//
//	limit:iops=N,bandwidth=SIZE,burst=TIME,session-iops=N,…:SPEC
//
// A specification without is returned as it is.
func cutLimits(spec string) (all, session Limits, disk string, err error) {
	text, limited := strings.CutPrefix(spec, limitPrefix)
	if !limited {
		return all, session, spec, nil
	}
	text, disk, found := strings.Cut(text, ":")
	if !found {
		return all, session, "", fmt.Errorf("%s limits no disk: write %sLIMIT=VALUE,…:SPEC", spec, limitPrefix)
	}
	seen := make(map[string]bool)
	for rule := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(rule, "=")
		if seen[name] {
			return all, session, "", fmt.Errorf("%s: %s stands twice", limitPrefix, name)
		}
		seen[name] = true
		l, key := &all, name
		if rest, ok := strings.CutPrefix(name, "session-"); ok {
			l, key = &session, rest
		}
		if err := l.set(key, value); err != nil {
			return all, session, "", fmt.Errorf("%s %q: %w", limitPrefix, rule, err)
		}
	}
	return all, session, disk, nil
}

// set sets one limit.
func (l *Limits) set(key, value string) (err error) {
	switch key {
	case "iops":
		if l.IOPS, err = strconv.Atoi(value); err != nil || l.IOPS < 1 {
			return fmt.Errorf("%q is not a number of requests per second", value)
		}
	case "bandwidth":
		if l.Bandwidth, err = ParseSize(value); err != nil {
			return err
		}
		if l.Bandwidth == 0 {
			return fmt.Errorf("%q is no number of bytes per second", value)
		}
	case "burst":
		if l.Burst, err = time.ParseDuration(value); err != nil || l.Burst <= 0 {
			return fmt.Errorf("%q is not a duration such as 50ms or 1s", value)
		}
	default:
		return fmt.Errorf("unknown limit %q: iops, bandwidth and burst are known, and the same with session- before them", key)
	}
	return nil
}
