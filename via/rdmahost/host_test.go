package rdmahost_test

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
)

func TestParseHost(t *testing.T) {
	for text, want := range map[string]struct {
		name, addr string
		port       uint16
	}{
		"10.0.0.2":               {"", "10.0.0.2", 4791},
		"10.0.0.2:5000":          {"", "10.0.0.2", 5000},
		"192.0.2.1:7":            {"", "192.0.2.1", 7},
		"::1":                    {"", "::1", 4791},
		"fd00::1":                {"", "fd00::1", 4791},
		"[::1]":                  {"", "::1", 4791},
		"[::1]:5000":             {"", "::1", 5000},
		"[fd00::1]:65535":        {"", "fd00::1", 65535},
		"::ffff:10.0.0.2":        {"", "10.0.0.2", 4791},
		"[::ffff:10.0.0.2]:4000": {"", "10.0.0.2", 4000},
		"fe80::1%eth0":           {"", "fe80::1%eth0", 4791},
		"[fe80::1%eth0]:12":      {"", "fe80::1%eth0", 12},
		"0.0.0.0":                {"", "0.0.0.0", 4791},
		"0.0.0.0:10809":          {"", "0.0.0.0", 10809},
		"[::]:10809":             {"", "::", 10809},
		"disks":                  {"disks", "invalid IP", 4791},
		"disks:5000":             {"disks", "invalid IP", 5000},
	} {
		h, err := rdmahost.Parse(text, 4791)
		if err != nil || h.Name != want.name || h.Addr.String() != want.addr || h.Port != want.port {
			t.Errorf("%q is %+v, %v; want %+v", text, h, err, want)
		}
	}
	for _, text := range []string{
		"", ":1", ":5000", "10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "192.0.2.1:x",
		"h:-1", "[::1", "a:b:c",
	} {
		if h, err := rdmahost.Parse(text, 4791); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("%q is %+v, %v", text, h, err)
		}
	}
}

func TestResolve(t *testing.T) {
	h, err := rdmahost.Parse("[::ffff:192.0.2.1]:7", rdmahost.ServicePort)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Resolve(t.Context()); err != nil || h.AddrPort().String() != "192.0.2.1:7" {
		t.Errorf("an address resolves to %v, %v", h.AddrPort(), err)
	}
	unknown := rdmahost.Host{Name: "unknown.invalid"}
	if err := unknown.Resolve(t.Context()); !errors.Is(err, via.ErrNotReachable) {
		t.Errorf("an unknown name: %v", err)
	}
}
