//go:build verbs && cgo

package verbs

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"pgregory.net/rapid"
)

func TestHostOfAnAddress(t *testing.T) {
	for host, want := range map[string]string{
		"192.0.2.1":         "192.0.2.1:10809",
		"192.0.2.1:7":       "192.0.2.1:7",
		"fd00::1":           "[fd00::1]:10809",
		"[fd00::1]:65535":   "[fd00::1]:65535",
		"::ffff:192.0.2.1":  "192.0.2.1:10809",
		"0.0.0.0:10809":     "0.0.0.0:10809",
		"[::]:10809":        "[::]:10809",
		"[fe80::1%eth0]:12": "[fe80::1%eth0]:12",
	} {
		got, err := resolve(t.Context(), host)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", host, got, err, want)
		}
	}
	for _, host := range []string{"", ":1", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:x", "h:-1"} {
		if _, err := resolve(t.Context(), host); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("%q: %v", host, err)
		}
	}
	if _, err := resolve(t.Context(), "missing.invalid"); !errors.Is(err, via.ErrNotReachable) {
		t.Errorf("a name that does not resolve: %v", err)
	}
}

func TestHostAsSocketAddress(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "address")
		addr := netip.AddrFrom16([16]byte(b)).Unmap()
		if rapid.Bool().Draw(rt, "IPv4") {
			addr = netip.AddrFrom4([4]byte(b[:4]))
		}
		want := netip.AddrPortFrom(addr, rapid.Uint16().Draw(rt, "port"))
		if got := addrPort(sockaddr(want)); got != want {
			rt.Fatalf("%v became %v", want, got)
		}
	})
}

// timeoutCode rounds up.
func TestTimeoutCode(t *testing.T) {
	for d, want := range map[time.Duration]int{
		0: 1, time.Microsecond: 1, 8192 * time.Nanosecond: 1, 8193 * time.Nanosecond: 2,
		500 * time.Millisecond: 17, 60 * time.Millisecond: 14, 5 * time.Hour: 31,
	} {
		if got := timeoutCode(d); got != want {
			t.Errorf("%v: code %d, want %d", d, got, want)
		}
	}
}

func TestTimeoutsByDefault(t *testing.T) {
	if o := (Options{}).withDefaults(); o.Timeout != 500*time.Millisecond || o.Retries != 7 {
		t.Errorf("defaults are %+v", o)
	}
	if o := (Options{Retries: 100}).withDefaults(); o.Retries != 7 {
		t.Errorf("%d retries, a device knows 7", o.Retries)
	}
}
