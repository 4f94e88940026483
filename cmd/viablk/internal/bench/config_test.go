package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// openNIC opens a device that is closed with the test.
func openNIC(t testing.TB) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	if err != nil {
		t.Fatal(err)
	}
	nic.ErrorCallback(func(via.AsyncError) {}) // connections end in the middle of a test
	t.Cleanup(func() {
		if err := nic.Close(); err != nil {
			t.Error(err)
		}
	})
	return nic
}

func TestCasesOfModes(t *testing.T) {
	cfg, err := Config{
		Modes: Modes(), Sizes: []int{0, 64}, Waits: []Wait{Poll, Sleep}, Level: via.ReliableDelivery, Rounds: 2,
	}.complete(openNIC(t))
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[Mode]int)
	for _, c := range cfg.cases() {
		count[c.Mode]++
		if (c.Mode == RdmaRead || c.Mode == RdmaWrite) && c.Size == 0 {
			t.Errorf("%v moves nothing", c)
		}
		if (c.Mode == PostRate || c.Mode == PollScale) && c.Wait != Poll {
			t.Errorf("%v does not poll", c)
		}
	}
	want := map[Mode]int{PingPong: 4, Window: 4, RdmaWrite: 2, RdmaRead: 2, PostRate: 2, PollScale: 4}
	for m, n := range want {
		if count[m] != n {
			t.Errorf("%s has %d cases, want %d", m, count[m], n)
		}
	}
	cfg.Many = 1 // compared with itself
	if n := len(cfg.cases()); n != 12+1+2 {
		t.Errorf("with one VI there are %d cases, want 15", n)
	}
}

// However long a message is, the rounds together have as many operations as the
// description of the modes promises.
func TestOperationsAreBounded(t *testing.T) {
	least := map[Mode]int{PingPong: 1000, Window: 2000, RdmaWrite: 500, RdmaRead: 500, PostRate: 2000, PollScale: 1000, UDP: 1000, TCP: 500}
	for _, rounds := range []int{1, 3, 5} {
		cfg := Config{Rounds: rounds, Volume: defaultVolume}
		for _, m := range slices.Concat(Modes(), Yardsticks()) {
			for _, w := range Waits() {
				small := Case{Mode: m, Size: 64, Wait: w, VIs: 1, Batch: 1}
				medium := Case{Mode: m, Size: mediumMessage, Wait: w, VIs: 1, Batch: 1}
				huge := Case{Mode: m, Size: MaximumSize, Wait: w, VIs: 1, Batch: 1}
				for _, x := range []Case{small, medium} {
					if n := cfg.ops(x); n < least[m] {
						t.Errorf("a round of %v has %d operations, fewer than %d", x, n, least[m])
					}
				}
				if n := cfg.ops(huge); n*rounds < least[m] {
					t.Errorf("%d rounds of %v have %d operations, fewer than %d", rounds, huge, n*rounds, least[m])
				}
				if cfg.ops(huge) > cfg.ops(small) {
					t.Errorf("%v has more operations than %v", huge, small)
				}
				brief := cfg
				brief.Brief = true
				if n := brief.ops(huge); n != least[m] {
					t.Errorf("%v has %d operations in brief, want %d", huge, n, least[m])
				}
			}
		}
	}
	cfg := Config{Rounds: 5, Volume: defaultVolume, Ops: 7}
	if n := cfg.ops(Case{Mode: Window, Size: 64, Wait: Poll}); n != 7 {
		t.Errorf("7 operations were asked for, %d are measured", n)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	nic := openNIC(t)
	good := Config{Modes: Modes(), Sizes: []int{64}, Waits: Waits(), Level: via.ReliableDelivery, Rounds: 1}
	if _, err := good.complete(nic); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no mode":       {func(c *Config) { c.Modes = nil }, "nothing to measure"},
		"no size":       {func(c *Config) { c.Sizes = nil }, "nothing to measure"},
		"no wait":       {func(c *Config) { c.Waits = nil }, "nothing to measure"},
		"no round":      {func(c *Config) { c.Rounds = 0 }, "not within the limits"},
		"too many VIs":  {func(c *Config) { c.VIs = MaximumVIs + 1 }, "not within the limits"},
		"too many many": {func(c *Config) { c.Many = -1 }, "not within the limits"},
		"negative":      {func(c *Config) { c.Ops = -1 }, "not within the limits"},
		"negative size": {func(c *Config) { c.Sizes = []int{-1} }, "longer than"},
		"long message":  {func(c *Config) { c.Sizes = []int{MaximumSize + 1} }, "longer than"},
		"unknown level": {func(c *Config) { c.Level = 8 }, "has no invalid reliability level"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			c.change(&bad)
			if _, err := bad.complete(nic); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestProcessorsAreAscending(t *testing.T) {
	all, err := Processors()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 || !slices.IsSorted(all) {
		t.Errorf("the processors are %v", all)
	}
}
