package activity

import "testing"

// TestPathShares: requests of an interval are those of its paths; a new path,
// and counters that begin again with a session, give none.
func TestPathShares(t *testing.T) {
	for name, c := range map[string]struct {
		before, now []HostPath
		want        []float64
	}{
		"both":          {[]HostPath{{Host: "a", Requests: 10}, {Host: "b", Requests: 100}}, []HostPath{{Host: "a", Requests: 40}, {Host: "b", Requests: 110}}, []float64{0.75, 0.25}},
		"idle":          {[]HostPath{{Host: "a", Requests: 10}}, []HostPath{{Host: "a", Requests: 10}}, []float64{-1}},
		"a new one":     {[]HostPath{{Host: "a", Requests: 10}}, []HostPath{{Host: "b", Requests: 900}, {Host: "a", Requests: 12}}, []float64{0, 1}},
		"a new session": {[]HostPath{{Host: "a", Requests: 10}, {Host: "b", Requests: 1}}, []HostPath{{Host: "a", Requests: 3}, {Host: "b", Requests: 3}}, []float64{0, 1}},
		"none any more": {[]HostPath{{Host: "a", Requests: 10}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			rows := pathRows(c.now, c.before)
			if len(rows) != len(c.want) {
				t.Fatalf("%d rows", len(rows))
			}
			for i, r := range rows {
				if r.Share != c.want[i] || r.Host != c.now[i].Host {
					t.Errorf("%s has %v, not %v", r.Host, r.Share, c.want[i])
				}
			}
		})
	}
}
