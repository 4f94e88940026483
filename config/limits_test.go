package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestShortFormWithLimits(t *testing.T) {
	for in, want := range map[string]Export{
		"a=memory:1M":                      {Name: "a", Backend: "memory:1M"},
		"a=limit:iops=500:memory:1M":       {Name: "a", Backend: "memory:1M", Limits: Limits{IOPS: 500}},
		"a=limit:bandwidth=1.5M:file:/x:y": {Name: "a", Backend: "file:/x:y", Limits: Limits{Bandwidth: 1536 * KiB}},
		"limit:=limit:session-iops=1,iops=2,burst=1m,session-bandwidth=64k,session-burst=1ms:delay:any=1ms:null:1G": {
			Name: "limit:", Backend: "delay:any=1ms:null:1G",
			Limits:        Limits{IOPS: 2, Burst: time.Minute},
			SessionLimits: Limits{IOPS: 1, Bandwidth: 64 * KiB, Burst: time.Millisecond},
		},
	} {
		var got Export
		if err := got.UnmarshalText([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		} else if a, b := encode(t, got), encode(t, want); a != b {
			t.Errorf("%s: %s, want %s", in, a, b)
		}
	}
	for in, want := range map[string]string{
		"a=limit:iops=5":                         "limits no disk",
		"a=limit::memory:1M":                     `unknown limit ""`,
		"a=limit:iops=:memory:1M":                "is not a number of requests",
		"a=limit:iops=0:memory:1M":               "is not a number of requests",
		"a=limit:iops=1k:memory:1M":              "is not a number of requests",
		"a=limit:bandwidth=fast:memory:1M":       "has no unit",
		"a=limit:bandwidth=0:memory:1M":          "is no number of bytes per second",
		"a=limit:burst=10:memory:1M":             "is not a duration",
		"a=limit:burst=-1s:memory:1M":            "is not a duration",
		"a=limit:iops=1,iops=2:memory:1M":        "stands twice",
		"a=limit:session-session-iops=1:null:1M": `unknown limit "session-iops"`,
	} {
		if err := new(Export).UnmarshalText([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func encode(t *testing.T, e Export) string {
	t.Helper()
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLimitsInFile(t *testing.T) {
	const text = `target: {exports: [
  {name: a, backend: "memory:1M", limits: {iops: 1000, bandwidth: 100MiB, burst: 50ms}, session_limits: {bandwidth: 1048576}},
  "b=limit:iops=7:memory:1M", "c=memory:1M"]}`
	e, err := Load(write(t, "viablk.yaml", text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Export{
		{Name: "a", Backend: "memory:1M", Limits: Limits{1000, 100 * MiB, 50 * time.Millisecond}, SessionLimits: Limits{Bandwidth: MiB}},
		{Name: "b", Backend: "memory:1M", Limits: Limits{IOPS: 7}},
		{Name: "c", Backend: "memory:1M"},
	}
	for i, x := range e.Config.Target.Exports {
		if a, b := encode(t, x), encode(t, want[i]); a != b {
			t.Errorf("%s, want %s", a, b)
		}
	}
	if got := encode(t, e.Config.Target.Exports[0]); !strings.Contains(got, `"limits":{"bandwidth":"100MiB","burst":"50ms","iops":1000}`) {
		t.Errorf("written as %s", got)
	}
	if got := encode(t, e.Config.Target.Exports[2]); strings.Contains(got, "limits") {
		t.Errorf("an export without limits is written as %s", got)
	}
}

func TestLimitsAreChecked(t *testing.T) {
	for limits, want := range map[string]string{
		"limits: {iops: -1}":                                 `export "a": limits.iops is -1`,
		"limits: {iops: 100000001}":                          "not in 1…100000000",
		"limits: {bandwidth: 1000}":                          "limits.bandwidth is 1000, not in 1KiB",
		"session_limits: {bandwidth: 2PiB}":                  "session_limits.bandwidth is 2PiB",
		"session_limits: {iops: 1, burst: 2m}":               "session_limits.burst is 2m0s",
		"limits: {burst: 1s}":                                "of no use without",
		"limits: {burst: 10, iops: 1}":                       "10 has no unit",
		"limits: {requests: 1}":                              "target.exports[0].limits.requests: unknown key; known here are iops, bandwidth, burst",
		"limits: 5":                                          "is a mapping",
		"backend: 'limit:iops=1:memory:1M', read_only: true": "write limits and session_limits beside it",
	} {
		text := "target: {exports: [{name: a, backend: 'memory:1M', " + limits + "}]}"
		if strings.HasPrefix(limits, "backend") {
			text = "target: {exports: [{name: a, " + limits + "}]}"
		}
		if _, err := Load(write(t, "viablk.yaml", text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", limits, err, want)
		}
	}
}

// A short form is within its bounds, and never more than it says.
func FuzzShortForm(f *testing.F) {
	for _, seed := range []string{
		"a=memory:1M", "a=limit:iops=5:x", "=limit:", "a=limit:session-burst=1s,bandwidth=1k:limit:iops=1:x", "a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var e Export
		if err := e.UnmarshalText([]byte(in)); err != nil {
			return
		}
		for _, l := range []Limits{e.Limits, e.SessionLimits} {
			if l.IOPS < 0 || l.Bandwidth < 0 || l.Burst < 0 {
				t.Errorf("%q: %+v", in, l)
			}
		}
		if name, spec, _ := strings.Cut(in, "="); e.Name != name || !strings.HasSuffix(spec, e.Backend) {
			t.Errorf("%q: name %q, backend %q", in, e.Name, e.Backend)
		}
	})
}
