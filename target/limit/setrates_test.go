package limit

import (
	"testing"
	"time"
)

// TestSetRates: new rates hold for the clients that are there, and wrong ones
// change nothing.
func TestSetRates(t *testing.T) {
	for name, of := range map[string]func(Rates) (shared, each Rates){
		"export":  func(r Rates) (shared, each Rates) { return r, Rates{} },
		"session": func(r Rates) (shared, each Rates) { return Rates{}, r },
	} {
		t.Run(name, func(t *testing.T) {
			one := &client{depth: 8, length: 4096}
			shared, each := of(Rates{Requests: 1000})
			w := newWorld(t, shared, each, one)
			defer w.close(t)
			w.run(t, 2*time.Second)
			within(t, "requests in 2 s", one.requests, 2000)
			for i, rates := range []Rates{{Requests: 5000}, {Bytes: 4096 * 300}, {Requests: 2000}} {
				if err := w.export.SetRates(of(rates)); err != nil {
					t.Fatal(err)
				}
				if err := w.export.SetRates(Rates{Requests: -1}, Rates{}); err == nil {
					t.Error("negative rates are set")
				}
				before := one.requests
				w.run(t, time.Duration(2*i+4)*time.Second)
				want := max(float64(rates.Requests), float64(rates.Bytes)/4096)
				within(t, "requests in 2 s", one.requests-before, 2*want)
			}
		})
	}
}
