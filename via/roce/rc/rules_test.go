package rc_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

var address = netip.MustParseAddrPort("[fd00::1]:4791")

// scriptConfig has a path MTU of 256.
func scriptConfig() rc.Config {
	return rc.Config{
		PeerQP: 9, MTU: wire.MTU256, SendDepth: 8, ReceiveDepth: 8, AllowWrite: true, AllowRead: true,
		Reads: 2, PeerReads: 2, Timeout: 100 * time.Millisecond, Retries: 2,
		RNRDelay: time.Millisecond, RNRRetries: 1,
	}
}

// rule is one rule of the protocol and the script that proves it.
type rule struct {
	name   string
	change func(*rc.Config)
	lines  string
}

// playRules plays each script twice: with PSNs that wrap and PSNs that do not.
func playRules(t *testing.T, rules []rule) {
	for _, r := range rules {
		for _, psn := range []wire.PSN{0, 0x123456, 0x7fffff, 0xffffff, 0xfffffe} {
			t.Run(r.name, func(t *testing.T) {
				cfg := scriptConfig()
				cfg.PSN, cfg.PeerPSN = psn, psn.Add(-1)
				if r.change != nil {
					r.change(&cfg)
				}
				play(t, cfg, r.lines)
			})
		}
	}
}
