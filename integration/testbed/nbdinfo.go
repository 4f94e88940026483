package testbed

import (
	"encoding/json"
	"testing"
)

// NBDInfo asks for the description of the exports behind a URI.
func NBDInfo(t testing.TB, args ...string) (exports []map[string]any) {
	t.Helper()
	out := Run(t, "nbdinfo", append([]string{"--json"}, args...)...)
	var report struct {
		Protocol   string           `json:"protocol"`
		TLS        bool             `json:"TLS"`
		Structured bool             `json:"structured"`
		Exports    []map[string]any `json:"exports"`
	}
	Must(t, json.Unmarshal([]byte(out), &report))
	if report.Protocol != "newstyle-fixed" || report.TLS || !report.Structured {
		t.Errorf("nbdinfo %v: protocol: %s", args, out)
	}
	return report.Exports
}
