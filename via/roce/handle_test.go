package roce_test

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
)

// A device has as many regions as it says. No bit of their handles, which are
// the keys of packets, is predictable, and none finds another region.
func TestHandlesAreRandom(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	x := newParty(t, roce.New(roce.Options{Open: n.Open}), "10.0.0.1")
	attrs := via.MemAttributes{Ptag: x.tag, EnableRdmaWrite: true}
	most := x.nic.Limits().MaxRegisterRegions - 1 // newParty has one
	var regions []*via.Memory
	var set, changed [32]int
	seen, last := map[uint32]bool{x.mem.Handle(): true}, x.mem.Handle()
	for i := range most {
		m, err := x.nic.RegisterMem(x.payload(8*(i%100_000), 8), attrs)
		check(t, err)
		regions = append(regions, m)
		h := m.Handle()
		if h == 0 || seen[h] {
			t.Fatalf("region %d has handle %#x", i, h)
		}
		seen[h] = true
		for bit := range 32 {
			set[bit] += int(h >> bit & 1)
			changed[bit] += int((h ^ last) >> bit & 1)
		}
		last = h
	}
	for bit := range 32 {
		for name, count := range map[string]int{"set": set[bit], "changed": changed[bit]} {
			if count < most*48/100 || count > most*52/100 {
				t.Errorf("bit %d is %s in %d of %d handles", bit, name, count, most)
			}
		}
	}
	if _, err := x.nic.RegisterMem(x.payload(0, 8), attrs); !errors.Is(err, via.ErrResource) {
		t.Errorf("one region too many: %v", err)
	}
	for i, m := range regions {
		if x.nic.LookupMemory(m.Handle()) != m || x.nic.LookupMemory(m.Handle()^1) == m {
			t.Fatalf("region %d is not found by its handle alone", i)
		}
	}
	check(t, x.nic.DeregisterAll(regions))
	for i, m := range regions {
		if x.nic.LookupMemory(m.Handle()) != nil {
			t.Fatalf("region %d is found after its end", i)
		}
	}
	x.close()
}
