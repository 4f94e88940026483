package main

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
)

// A socket that the process was started with is judged by its address, as one
// of its own is.
func TestExposureOfOpenSockets(t *testing.T) {
	for _, s := range []struct {
		network, address string
		local            bool
	}{
		{"tcp", "127.0.0.1:0", true},
		{"tcp4", "0.0.0.0:0", false},
		{"unix", t.TempDir() + "/s", true},
		{"unix", "", true}, // the kernel chooses an abstract name
	} {
		l, err := net.Listen(s.network, s.address)
		if err != nil {
			t.Fatal(err)
		}
		in := &nbdListeners{endpoints: []endpoint{{uri: uriOf(l.Addr()), name: "nbd", listener: l}}}
		defer in.close()
		for _, c := range []struct {
			insecure, secure bool
			warns            bool
			code             int
		}{{code: exitConfiguration}, {insecure: true, warns: true}, {secure: true}, {insecure: true, secure: true}} {
			cfg := config.Default()
			cfg.Insecure = c.insecure
			if c.secure {
				cfg.NBD.TLS = "require"
			}
			var out bytes.Buffer
			err := checkExposure(cfg, in, nil, nil, newLog(cfg.Log, &out))
			code := exitOK
			if err != nil {
				code = exitCode(err)
			}
			want := c.code
			if s.local {
				want = exitOK
			}
			if code != want {
				t.Errorf("%s %s, %+v: got %v, exit code %d, want %d", s.network, s.address, c, err, code, want)
			}
			if warned := strings.Count(out.String(), "any host that reaches these listeners"); (warned == 1) != (c.warns && !s.local) {
				t.Errorf("%s %s, %+v: logged %q", s.network, s.address, c, &out)
			}
		}
	}
}
