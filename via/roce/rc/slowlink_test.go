package rc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// TestGoodputOfSlowLink: on a link that became a thousand times slower, each
// packet is on its way for longer than any round trip before. The QP learns the
// longer one, and retransmits few packets.
func TestGoodputOfSlowLink(t *testing.T) {
	for _, rate := range []float64{125e3, 500e3} {
		for op, name := range map[rc.Op]string{rc.Write: "Write", rc.Read: "Read"} {
			t.Run(fmt.Sprintf("%s at %.0f B/s", name, rate), func(t *testing.T) {
				x := bulk{
					op: op, size: 1 << 20, rate: rate, delay: 100 * time.Microsecond, queue: 200 * time.Millisecond,
					window: 512, keep: true, mtu: wire.MTU1024, warm: 20,
				}
				got, c, err := x.run(1, fate{}, 1)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%.3f of the link; %d of %d packets again, %d time-outs; window %d, RTT %v", got/rate, c.Retransmitted, c.Sent, c.Timeouts, c.Window, c.RTT)
				if got < 0.4*rate {
					t.Errorf("%.3f of the link are used", got/rate)
				}
			})
		}
	}
}
