package roce

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
	"github.com/viablk/viablk/via/roce/wire"
)

func TestParseHost(t *testing.T) {
	for text, want := range map[string]struct {
		name, addr string
		port       uint16
		service    uint16
	}{
		"10.0.0.2":               {"", "10.0.0.2", 4791, rdmahost.ServicePort},
		"10.0.0.2:5000":          {"", "10.0.0.2", 5000, rdmahost.ServicePort},
		"10.0.0.2/80":            {"", "10.0.0.2", 4791, 80},
		"10.0.0.2:5000/80":       {"", "10.0.0.2", 5000, 80},
		"::1":                    {"", "::1", 4791, rdmahost.ServicePort},
		"[::1]":                  {"", "::1", 4791, rdmahost.ServicePort},
		"[::1]:5000/7":           {"", "::1", 5000, 7},
		"::ffff:10.0.0.2":        {"", "10.0.0.2", 4791, rdmahost.ServicePort},
		"[::ffff:10.0.0.2]:4000": {"", "10.0.0.2", 4000, rdmahost.ServicePort},
		"fe80::1%eth0":           {"", "fe80::1%eth0", 4791, rdmahost.ServicePort},
		"0.0.0.0":                {"", "0.0.0.0", 4791, rdmahost.ServicePort},
		"disks":                  {"disks", "invalid IP", 4791, rdmahost.ServicePort},
		"disks:5000/9":           {"disks", "invalid IP", 5000, 9},
	} {
		h, err := parseHost(text, 4791)
		if err != nil || h.Name != want.name || h.Addr.String() != want.addr || h.Port != want.port || h.service != wire.TCPService(want.service) {
			t.Errorf("%q is %+v, %v; want %+v", text, h, err, want)
		}
	}
	for _, text := range []string{"", ":5000", "/80", "10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "10.0.0.2/", "10.0.0.2/0", "10.0.0.2/x", "[::1", "a:b:c"} {
		if h, err := parseHost(text, 4791); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("%q is %+v, %v", text, h, err)
		}
	}
}
