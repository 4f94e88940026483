package rdmahost_test

import (
	"net/netip"
	"testing"

	"github.com/viablk/viablk/via/rdmahost"
)

// An address has a part of the places, all addresses together have all, and a
// place is free again once it is released, however often.
func TestPlaces(t *testing.T) {
	var p rdmahost.Places
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
	var all []*rdmahost.Place
	for n := range rdmahost.MaxRequests / rdmahost.MaxRequestsPerAddr {
		for range rdmahost.MaxRequestsPerAddr {
			place := p.Acquire(addr(n))
			if place == nil {
				t.Fatalf("no place below the bounds, %d are taken", len(all))
			}
			all = append(all, place)
		}
		if n == 0 && p.Acquire(addr(n)) != nil {
			t.Error("an address has more than its part")
		}
	}
	if p.Acquire(addr(100)) != nil {
		t.Error("more places than there are")
	}
	for range 3 {
		all[0].Release()
	}
	if p.Acquire(addr(100)) == nil || p.Acquire(addr(100)) != nil {
		t.Error("a place that is released three times is not one place")
	}
	for _, place := range all {
		place.Release()
	}
	if p.Acquire(addr(1)) == nil {
		t.Error("released places are not free")
	}
	var none *rdmahost.Place
	none.Release()
}
