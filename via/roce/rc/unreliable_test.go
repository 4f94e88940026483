package rc_test

import (
	"testing"

	"github.com/viablk/viablk/via/roce/rc"
)

func TestUnreliableRules(t *testing.T) {
	uc := func(c *rc.Config) { c.Unreliable = true }
	playRules(t, []rule{
		{"done when sent", uc, `
			post send 300
			post write 5 imm
			<- UC-SEND-First psn=0 n=256
			<- UC-SEND-Last psn=1 n=44
			<- UC-WRITE-Only-with-Immediate psn=2 n=5 len=5
			done ok
			done ok
			wait 10s
			quiet`},
		{"messages arrive, nothing is answered", uc, `
			recv 300
			recv 10
			-> UC-SEND-First psn=0 n=256
			-> UC-SEND-Last psn=1 n=4 a=1
			-> UC-WRITE-Only-with-Immediate psn=2 n=5 len=5 key=1
			quiet
			got ok 260
			got ok 5`},
		{"a lost end", uc, `
			recv 600
			recv 10
			-> UC-SEND-First psn=0 n=256
			-> UC-SEND-Only psn=2 n=4
			got partial message 256
			got ok 4
			nothing`},
		{"a lost start", uc, `
			recv 600
			-> UC-SEND-Last psn=1 n=4
			-> UC-SEND-Only psn=2 n=4
			got ok 4`},
		{"a write that lost its end", uc, `
			recv 10
			-> UC-WRITE-First psn=0 n=256 len=300 key=1
			-> UC-SEND-Only psn=2 n=4
			event write-aborted
			got ok 4
			nothing`},
		{"late and again", uc, `
			recv 10
			recv 10
			-> UC-SEND-Only psn=1 n=5
			-> UC-SEND-Only psn=0 n=4
			-> UC-SEND-Only psn=1 n=5
			got ok 5
			nothing`},
		{"no receive", uc, `
			-> UC-SEND-First psn=0 n=256
			-> UC-SEND-Last psn=1 n=4
			event empty-queue
			recv 10
			-> UC-SEND-Only psn=2 n=4
			got ok 4
			nothing`},
		{"no receive for immediate data", uc, `
			-> UC-WRITE-First psn=0 n=256 len=260 key=1
			-> UC-WRITE-Last-with-Immediate psn=1 n=4
			event empty-queue
			nothing`},
		{"longer than its receive", uc, `
			recv 300
			recv 10
			-> UC-SEND-First psn=0 n=256
			-> UC-SEND-Middle psn=1 n=256
			-> UC-SEND-Last psn=2 n=4
			-> UC-SEND-Only psn=3 n=4
			got message too long 256
			got ok 4
			nothing`},
		{"a refused write", uc, `
			recv 10
			-> UC-WRITE-First psn=0 n=256 len=260 key=3
			nothing
			-> UC-WRITE-Last psn=1 n=4
			event write-refused
			-> UC-WRITE-Only psn=2 n=4 len=4 key=2
			event write-refused
			nothing`},
		{"a refused write with immediate data", uc, `
			recv 10
			recv 10
			-> UC-WRITE-First psn=0 n=256 len=260 key=3
			-> UC-WRITE-Last-with-Immediate psn=1 n=4
			got refused write 0
			-> UC-WRITE-Only-with-Immediate psn=2 n=4 len=4 key=3
			got refused write 0
			nothing`},
		{"a refused write that lost its end", uc, `
			recv 10
			-> UC-WRITE-First psn=0 n=256 len=260 key=3
			-> UC-SEND-Only psn=2 n=4
			event write-refused
			got ok 4
			nothing`},
		{"a write longer than it said", uc, `
			-> UC-WRITE-First psn=0 n=256 len=300 key=1
			-> UC-WRITE-Last psn=1 n=45
			event write-aborted
			nothing`},
		{"a receive whose memory is gone", uc, `
			recv 10
			recv 10
			gone
			-> UC-SEND-Only psn=0 n=4
			back
			-> UC-SEND-Only psn=1 n=4
			got local protection 0
			got ok 4
			nothing`},
		{"a work whose memory is gone", uc, `
			post send 5
			gone
			quiet
			done local protection
			back
			post send 6
			<- UC-SEND-Only n=6
			done ok
			nothing`},
		{"a read", uc, "post read 5\nquiet\ndone invalid work\nnothing"},
		{"a malformed packet", uc, `
			recv 10
			-> UC-SEND-Last psn=0 n=0
			-> UC-SEND-Only psn=1 n=4
			got ok 4`},
	})
}
