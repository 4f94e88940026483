package config

import (
	"fmt"
	"strings"
	"testing"
)

// The metrics listener that other hosts reach needs certificates, or an
// administrator who accepts that it has none.
func TestMetricsExposure(t *testing.T) {
	for _, c := range []struct {
		listen  string
		refused bool
	}{
		{":9810", false},
		{":0", false},
		{"127.0.0.1:9810", false},
		{"127.9.9.9:9810", false},
		{"[::1]:9810", false},
		{"localhost:9810", false},
		{"0.0.0.0:9810", true},
		{"[::]:9810", true},
		{"192.0.2.1:9810", true},
		{"[::ffff:192.0.2.1]:9810", true},
		{"[fe80::1%eth0]:9810", true},
		{"storage.example:9810", true},
		{"localhost.example:9810", true},
	} {
		file := "metrics: {listen: '" + c.listen + "'}\n"
		checkUnsafe(t, file, c.refused, "metrics.listen: any host that reaches "+c.listen+" could read who uses the disks")
		checkUnsafe(t, "insecure: true\n"+file, false, "")
		checkUnsafe(t, "metrics: {listen: '"+c.listen+"', certificates: c}\n", false, "")
	}
}

func TestMetricsAddress(t *testing.T) {
	for listen, want := range map[string]string{
		":9810": "127.0.0.1 9810", "127.0.0.1:1": "127.0.0.1 1", "[::0001]:65535": "::1 65535", "host:0": "host 0",
	} {
		if u, err := (Metrics{Listen: listen}).Address(); err != nil || fmt.Sprint(u.Host, " ", u.Port) != want {
			t.Errorf("%s: got %+v, %v", listen, u, err)
		}
	}
	for _, listen := range []string{
		"9810", "127.0.0.1", "::1:9810", "h:99999", "h:-1", "h:+1", "h:http", "h:", "a/b:1", "a@b:1", "a?b:1", "http://h:1", "a b:1", "a,b:1",
	} {
		if u, err := (Metrics{Listen: listen}).Address(); err == nil {
			t.Errorf("%s is taken for %+v", listen, u)
		}
	}
}

func TestMetricsComplaints(t *testing.T) {
	many := strings.Repeat("x,", maximumMetricsExports) + "x"
	for file, want := range map[string]string{
		"metrics: {listen: '9810'}":          `metrics.listen: "9810" is not HOST:PORT, such as 127.0.0.1:9810`,
		"metrics: {ready_away: -1s}":         "metrics.ready_away: -1s is not in 0s…24h0m0s",
		"metrics: {exports: [" + many + "]}": "metrics.exports: 257 exports are listed, at most 256 are allowed",
		"metrics: {port: 3}":                 "metrics.port: unknown key; known here are listen, certificates",
	} {
		if _, err := Load(write(t, "viablk.yaml", file), nil, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v", file, err)
		}
	}
}
