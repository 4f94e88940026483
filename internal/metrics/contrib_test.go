package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// contrib is where the dashboard and the rules are.
const contrib = "../../contrib"

// metricName matches what may be a metric in an expression.
var metricName = regexp.MustCompile(`\b(?:viablk[_:]|go_|process_)[a-zA-Z0-9_:]*`)

// registered returns the names of all series of the page, and of the recording
// rules.
func registered(t *testing.T, rules string) map[string]bool {
	t.Helper()
	s := fullSnapshot("disk")
	p := NewPage(func(context.Context) (*Snapshot, error) { return s, nil }, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.collector.snapshot = s
	list, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, f := range list {
		all[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				all[f.GetName()+suffix] = true
			}
		}
	}
	for _, record := range regexp.MustCompile(`(?m)record: (\S+)$`).FindAllStringSubmatch(rules, -1) {
		all[record[1]] = true
	}
	return all
}

// unregistered returns the metrics in a text that there are not.
func unregistered(text string, all map[string]bool) []string {
	var bad []string
	for _, name := range metricName.FindAllString(text, -1) {
		if !all[name] {
			bad = append(bad, name)
		}
	}
	return bad
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(contrib, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// expressions returns the expressions of the dashboard.
func expressions(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/viablk.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range dashboard.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, x := range p.Targets {
			all = append(all, x.Expr)
		}
	}
	if len(all) < 20 || len(dashboard.Templating.List) != 3 {
		t.Fatalf("the dashboard has %d expressions", len(all))
	}
	return all
}

// The dashboard, the rules and the manual name metrics that there are, and the
// manual names all of ours.
func TestNamesAreRegistered(t *testing.T) {
	rules := read(t, "prometheus/rules.yaml")
	all := registered(t, rules)
	for _, file := range []string{"prometheus/rules.yaml", "prometheus/alerts.yaml", "prometheus/alerts_test.yaml", "grafana/viablk.json"} {
		if bad := unregistered(read(t, file), all); len(bad) != 0 {
			t.Errorf("%s names %q", file, bad)
		}
	}
	manual := strings.ReplaceAll(read(t, "../docs/metrics.md"), "`…_", "`viablk_regcache_")
	if bad := unregistered(strings.NewReplacer("`go_*`", "", "`process_*`", "").Replace(manual), all); len(bad) != 0 {
		t.Errorf("docs/metrics.md names %q", bad)
	}
	for _, name := range slices.Sorted(maps.Keys(gather(t, fullSnapshot("disk")))) {
		if !strings.Contains(manual, "`"+name+"`") {
			t.Errorf("docs/metrics.md does not name %s", name)
		}
	}
	for _, planted := range []string{"viablk_requests", "viablk:request:rate5m", "process_cpus", "go_gorouines"} {
		if bad := unregistered("sum(rate("+planted+"[5m])) + viablk_up", all); !slices.Equal(bad, []string{planted}) {
			t.Errorf("of %q %q is found", planted, bad)
		}
	}
}

// promtool runs the tool of Prometheus, whose absence is a failure.
func promtool(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	tool := exec.CommandContext(t.Context(), "promtool", args...)
	tool.Stdin = strings.NewReader(input)
	out, err := tool.CombinedOutput()
	return string(out), err
}

// promtool accepts the page and the rules, and each alert fires and is silent
// where its tests say so.
func TestPromtool(t *testing.T) {
	s := fullSnapshot("disk", "")
	page := decompress(t, scrape(t, NewPage(func(context.Context) (*Snapshot, error) { return s, nil }, nil), "", ""))
	if out, err := promtool(t, string(page), "check", "metrics"); err != nil || out != "" {
		t.Errorf("check metrics: %v: %s", err, out)
	}
	if out, err := promtool(t, "# TYPE viablk_x counter\nviablk_x 1\n", "check", "metrics"); err == nil && out == "" {
		t.Error("check metrics accepts a counter without _total")
	}
	rules, alerts, tests := filepath.Join(contrib, "prometheus/rules.yaml"), filepath.Join(contrib, "prometheus/alerts.yaml"), filepath.Join(contrib, "prometheus/alerts_test.yaml")
	if out, err := promtool(t, "", "check", "rules", rules, alerts); err != nil {
		t.Errorf("check rules: %v: %s", err, out)
	}
	if out, err := promtool(t, "", "test", "rules", tests); err != nil {
		t.Errorf("test rules: %v: %s", err, out)
	}
	// Each alert has a test in which it fires, and one in which it does not.
	names := regexp.MustCompile(`alert: (\S+)`).FindAllStringSubmatch(read(t, "prometheus/alerts.yaml"), -1)
	content := read(t, "prometheus/alerts_test.yaml")
	for _, name := range names {
		fires := regexp.MustCompile(`alertname: ` + name[1] + `\n\s+exp_alerts:\s`)
		if !fires.MatchString(content) || !strings.Contains(content, "alertname: "+name[1]+", exp_alerts: []") {
			t.Errorf("%s has no test", name[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("there are only %d alerts", len(names))
	}
}

// The expressions of the dashboard are PromQL.
func TestDashboardIsPromQL(t *testing.T) {
	check := func(list []string) error {
		var rules strings.Builder
		rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
		for i, x := range list {
			text, err := json.Marshal(strings.ReplaceAll(x, "$__rate_interval", "5m"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&rules, "      - {record: 'x%d', expr: %s}\n", i, text)
		}
		path := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := promtool(t, "", "check", "rules", path)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	list := expressions(t)
	if err := check(list); err != nil {
		t.Error(err)
	}
	if check(append(list, "rate(viablk_up)")) == nil {
		t.Error("promtool accepts a wrong expression")
	}
}
