package regcache

import (
	"errors"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

func TestCalibrate(t *testing.T) {
	o := newOracle()
	nic := must(via.OpenNic(o, ""))(t)
	tag := must(nic.CreatePtag())(t)
	spin := func(d time.Duration) {
		for begin := time.Now(); time.Since(begin) < d; {
		}
	}
	up := func(m *via.Memory) error { spin(30 * time.Microsecond); return nil }
	down := func(m *via.Memory) { spin(10 * time.Microsecond) }
	o.onRegister.Store(&up)
	o.onDeregister.Store(&down)
	c := must(Calibrate(nic, tag))(t)
	if n := c.Register.At(1 << 20); n < 30e3 {
		t.Errorf("to register 1 MiB takes %.0f ns, charged were 30 µs", n)
	}
	if n := c.Deregister.At(4096); n < 10e3 {
		t.Errorf("to deregister 4 KiB takes %.0f ns, charged were 10 µs", n)
	}
	if c.CopyWarm.At(1<<20) <= 0 || c.CopyCold.At(1<<20) <= 0 || c.Elapsed <= 0 || len(c.Samples) == 0 {
		t.Errorf("%+v", c)
	}
	o.failRegister(1, via.ErrResource)
	if _, err := Calibrate(nic, tag); !errors.Is(err, via.ErrResource) {
		t.Errorf("with a NIC that refuses: %v", err)
	}
	if live, registered, deregistered := o.count(); live != 0 || registered != deregistered {
		t.Errorf("%d live", live)
	}
	if err := nic.Close(); err != nil {
		t.Error(err)
	}
}

// Calibrate starts no run that would exceed the limit, however slow the NIC is.
// The test's clock advances only in the NIC.
func TestCalibrateEndsInTime(t *testing.T) {
	const most = 20 * time.Millisecond
	for _, c := range []struct {
		name    string
		fixed   time.Duration
		perPage time.Duration
		sizes   int
	}{
		{"as fast as the clock", 0, 0, 3},
		{"ucx", 16 * time.Microsecond, 240 * time.Nanosecond, 3},
		{"cibr", 19 * time.Microsecond, 2800 * time.Nanosecond, 3},
		{"4 ms for a granule", 50 * time.Microsecond, 15 * time.Microsecond, 3},
		{"12 ms for a granule", 0, 47 * time.Microsecond, 3},
		{"18 ms for a granule", 0, 70 * time.Microsecond, 2},
		{"a second for a granule", 0, 4 * time.Millisecond, 1},
		{"3 ms for anything", 3 * time.Millisecond, 0, 1},
		{"11 ms for anything", 11 * time.Millisecond, 0, 1},
	} {
		o := newOracle()
		nic := must(via.OpenNic(o, ""))(t)
		tag := must(nic.CreatePtag())(t)
		clock := time.Unix(1e9, 0)
		take := func(m *via.Memory) {
			clock = clock.Add(c.fixed + time.Duration(len(m.Bytes())/4096)*c.perPage)
		}
		up := func(m *via.Memory) error { take(m); return nil }
		down := func(m *via.Memory) { clock = clock.Add(c.fixed / 2) }
		o.onRegister.Store(&up)
		o.onDeregister.Store(&down)
		got := must(calibrate(nic, tag, func() time.Time { return clock }))(t)
		if got.Elapsed > most || len(got.Samples) != c.sizes {
			t.Errorf("%s: takes %v with %d sizes, want %d", c.name, got.Elapsed, len(got.Samples), c.sizes)
		}
		if n := got.Register.At(4096); n < float64(c.fixed) {
			t.Errorf("%s: to register 4 KiB takes %.0f ns", c.name, n)
		}
		if err := nic.Close(); err != nil {
			t.Error(err)
		}
	}
}
