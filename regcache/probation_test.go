package regcache

import "testing"

// A pass over memory in small steps, larger than the budget, registers each
// granule once, although the policy refuses most of them.
func TestProbationOfRefusedRegion(t *testing.T) {
	for _, policy := range []Policy{PolicyClock, PolicyRistretto} {
		r := newRig(t, 128, Config{MaxRegions: 32, Policy: policy})
		const steps, passes = 8, 4
		for range passes {
			for g := range 128 {
				for s := range steps {
					l := must(r.Acquire(r.buf(g, s*4096, 4096), r.tag, RemoteRead))(t)
					l.Release()
				}
			}
		}
		if s := r.Stats(); s.Registrations > passes*128*3/2 || s.PeakRegions > 32 {
			t.Errorf("%s: %d registrations in %d passes over 128 granules: %+v", policy, s.Registrations, passes, s)
		}
	}
}

func TestProbationAdmitsRegionOnce(t *testing.T) {
	var p probation
	p.init(40, 32)
	all := make([]*region, 12)
	for i := range all {
		all[i] = &region{}
		out := p.admit(all[i])
		if want := i >= 4; want != (out != nil) || want && out != all[i-4] {
			t.Errorf("region %d pushes out another than the fourth before it", i)
		}
	}
	if p.admit(all[11]) != all[11] || p.admit(all[0]) != all[0] {
		t.Error("a region is on trial twice")
	}
	var none probation
	none.init(1, 1)
	if r := (&region{}); none.admit(r) != r {
		t.Error("a trial without room takes a region")
	}
}
