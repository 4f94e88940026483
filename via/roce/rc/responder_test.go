package rc_test

import (
	"testing"

	"github.com/viablk/viablk/via/roce/rc"
)

func TestResponderRules(t *testing.T) {
	playRules(t, []rule{
		{"acknowledges when asked, the newest alone", nil, `
			recv 10
			recv 10
			-> SEND-Only psn=0 n=5
			quiet
			-> SEND-Only psn=1 n=6 a=1
			<- Acknowledge psn=1 syn=31 msn=2
			quiet
			got ok 5
			got ok 6`},
		{"a message of several packets", nil, `
			recv 600
			-> SEND-First psn=0 n=256
			-> SEND-Middle psn=1 n=256
			-> SEND-Last psn=2 n=88 a=1
			<- Acknowledge psn=2 syn=31 msn=1
			got ok 600`},
		{"a gap is told once", nil, `
			recv 10
			-> SEND-Only psn=2 n=5 a=1
			<- Acknowledge psn=0 syn=96 msn=0
			-> SEND-Only psn=3 n=5 a=1
			quiet
			-> SEND-Only psn=0 n=5 a=1
			<- Acknowledge psn=0 syn=31 msn=1`},
		{"NAK repeated after a retransmission is lost", nil, `
			recv 10
			-> SEND-Only psn=2 n=5 a=1
			<- Acknowledge psn=0 syn=96
			-> SEND-Only psn=3 n=5 a=1
			quiet
			-> SEND-Only psn=1 n=5 a=1
			<- Acknowledge psn=0 syn=96
			nothing`},
		{"what is behind a gap is dropped without a stash", nil, `
			recv 10
			recv 10
			-> SEND-Only psn=1 n=5 a=1
			<- Acknowledge psn=0 syn=96
			-> SEND-Only psn=0 n=4 a=1
			<- Acknowledge psn=0 syn=31 msn=1
			got ok 4
			nothing`},
		{"what is behind a gap is kept in a stash", func(c *rc.Config) { c.Stash = rc.NewStash(4) }, `
			recv 10
			recv 10
			recv 10
			-> SEND-Only psn=1 n=5 a=1
			<- Acknowledge psn=0 syn=96
			-> SEND-Only psn=3 n=6 a=1
			quiet
			-> SEND-Only psn=0 n=4 a=1
			<- Acknowledge psn=2 syn=96 msn=2
			got ok 4
			got ok 5
			nothing`},
		{"a duplicate is acknowledged with the newest number", nil, `
			recv 10
			recv 10
			-> SEND-Only psn=0 n=5 a=1
			<- Acknowledge psn=0 syn=31
			-> SEND-Only psn=1 n=5 a=1
			<- Acknowledge psn=1 syn=31 msn=2
			-> SEND-Only psn=0 n=5
			<- Acknowledge psn=1 syn=31 msn=2
			got ok 5
			got ok 5
			nothing`},
		{"a middle without a first", nil, `
			recv 10
			-> SEND-Middle psn=0 n=256
			<- Acknowledge psn=0 syn=97
			got flushed 0
			event broken
			-> SEND-Only psn=1 n=5 a=1
			quiet`},
		{"a first within a message", nil, `
			recv 600
			-> SEND-First psn=0 n=256
			-> SEND-Only psn=1 n=5
			<- Acknowledge psn=1 syn=97
			event broken`},
		{"a write packet within a send", nil, `
			recv 600
			-> SEND-First psn=0 n=256
			-> WRITE-Last psn=1 n=5
			<- Acknowledge psn=1 syn=97
			event broken`},
		{"a first packet of another path MTU", nil, `
			recv 600
			-> SEND-First psn=0 n=512
			<- Acknowledge psn=0 syn=97`},
		{"an only packet beyond the path MTU", nil, `
			recv 600
			-> SEND-Only psn=0 n=260
			<- Acknowledge psn=0 syn=97`},
		{"a malformed packet waits for those before it", nil, `
			-> SEND-Last psn=1 n=0
			<- Acknowledge psn=0 syn=96
			-> SEND-Last psn=0 n=0
			<- Acknowledge psn=0 syn=97
			event broken`},
		{"atomics", nil, "-> CompareSwap psn=0\n<- Acknowledge psn=0 syn=97"},
		{"invalidation", nil, "recv 10\n-> SEND-Only-with-Invalidate psn=0 n=4\n<- Acknowledge psn=0 syn=97"},
		{"a refusal that was lost is repeated", nil, `
			-> SEND-Middle psn=0 n=256
			<- Acknowledge psn=0 syn=97
			-> SEND-Middle psn=1 n=256
			quiet
			-> SEND-Middle psn=0 n=256
			<- Acknowledge psn=0 syn=97
			quiet`},
		{"no receive, no VIA connection", nil, `
			-> SEND-Only psn=0 n=4
			<- Acknowledge psn=0 syn=99
			event empty-queue
			event broken`},
		{"no receive for immediate data", nil, `
			-> WRITE-Only-with-Immediate psn=0 n=4 len=4 key=1
			<- Acknowledge psn=0 syn=99
			event empty-queue
			event broken`},
		{"no receive, and a peer that waits", func(c *rc.Config) { c.WaitForReceive = true }, `
			-> SEND-Only psn=0 n=4 a=1
			<- Acknowledge psn=0 syn=46 msn=0
			-> SEND-Only psn=1 n=4 a=1
			quiet
			recv 10
			-> SEND-Only psn=0 n=4 a=1
			<- Acknowledge psn=0 syn=31 msn=1
			got ok 4`},
		{"a send longer than its receive", nil, `
			recv 300
			recv 10
			-> SEND-First psn=0 n=256
			-> SEND-Last psn=1 n=45
			<- Acknowledge psn=1 syn=97
			got message too long 256
			got flushed 0
			event broken`},
		{"posts on a broken queue pair", nil, `
			-> SEND-Middle psn=0 n=256
			event broken
			post send 5
			recv 5
			done flushed
			got flushed 0
			<- Acknowledge psn=0 syn=97
			quiet`},
		{"a receive whose memory is gone", nil, `
			recv 10
			gone
			-> SEND-Only psn=0 n=4
			<- Acknowledge psn=0 syn=99
			got local protection 0
			event broken`},
		{"a write", nil, `
			-> WRITE-First psn=0 n=256 len=300 key=1 addr=700
			-> WRITE-Last psn=1 n=44 a=1
			<- Acknowledge psn=1 syn=31 msn=1
			nothing`},
		{"a write with immediate data", nil, `
			recv 0
			-> WRITE-Only-with-Immediate psn=0 n=5 len=5 key=1 a=1
			<- Acknowledge psn=0 syn=31 msn=1
			got ok 5`},
		{"a write of nothing needs no key", nil, `
			-> WRITE-Only psn=0 n=0 len=0 key=99 addr=99999 a=1
			<- Acknowledge psn=0 syn=31 msn=1`},
		{"a write beyond its region is refused as a whole", nil, `
			-> WRITE-First psn=0 n=256 len=301 key=1 addr=700
			<- Acknowledge psn=0 syn=98
			event write-refused
			event broken`},
		{"a write with a wrong key", nil, `
			-> WRITE-Only psn=0 n=4 len=4 key=3
			<- Acknowledge psn=0 syn=98
			event write-refused
			event broken`},
		{"a write to memory that is for reading", nil, `
			-> WRITE-Only psn=0 n=4 len=4 key=2
			<- Acknowledge psn=0 syn=98`},
		{"a refused write with immediate data", nil, `
			recv 10
			-> WRITE-Only-with-Immediate psn=0 n=4 len=4 key=3
			<- Acknowledge psn=0 syn=98
			got refused write 0
			event broken`},
		{"writes are not allowed", func(c *rc.Config) { c.AllowWrite = false }, `
			-> WRITE-Only psn=0 n=4 len=4 key=1
			<- Acknowledge psn=0 syn=97
			event write-refused`},
		{"a write longer than it said", nil, `
			-> WRITE-First psn=0 n=256 len=300 key=1
			-> WRITE-Last psn=1 n=45
			<- Acknowledge psn=1 syn=97`},
		{"a write shorter than it said", nil, `
			-> WRITE-First psn=0 n=256 len=300 key=1
			-> WRITE-Last psn=1 n=43
			<- Acknowledge psn=1 syn=97`},
		{"a write that goes on where it should end", nil, `
			-> WRITE-First psn=0 n=256 len=512 key=1
			-> WRITE-Middle psn=1 n=256
			<- Acknowledge psn=1 syn=97`},
		{"memory withdrawn within a write", nil, `
			-> WRITE-First psn=0 n=256 len=300 key=1
			gone
			-> WRITE-Last psn=1 n=44
			<- Acknowledge psn=1 syn=98`},
		{"a read takes a number for each response", nil, `
			-> READ-Request psn=0 len=600 key=2 addr=4
			<- READ-Response-First psn=0 n=256 syn=31 msn=1
			<- READ-Response-Middle psn=1 n=256
			<- READ-Response-Last psn=2 n=88 syn=31
			-> READ-Request psn=3 len=0
			<- READ-Response-Only psn=3 n=0 msn=2`},
		{"a read again, from the middle", nil, `
			-> READ-Request psn=0 len=600 key=1 addr=4
			<- READ-Response-First psn=0 n=256
			<- READ-Response-Middle psn=1 n=256
			<- READ-Response-Last psn=2 n=88
			-> READ-Request psn=1 len=344 key=1 addr=260
			<- READ-Response-First psn=1 n=256 msn=1
			<- READ-Response-Last psn=2 n=88
			quiet`},
		{"a read again, of another range", nil, `
			-> READ-Request psn=0 len=600 key=1 addr=4
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-Last psn=2
			-> READ-Request psn=1 len=344 key=1 addr=261
			quiet
			-> READ-Request psn=1 len=345 key=1 addr=260
			quiet
			-> READ-Request psn=1 len=344 key=2 addr=260
			quiet
			-> READ-Request psn=1 len=0 key=1 addr=260
			quiet`},
		{"a read again while its answer is being sent", nil, `
			burst 1
			-> READ-Request psn=0 len=600 key=1
			-> READ-Request psn=3 len=300 key=1
			-> READ-Request psn=0 len=600 key=1
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-Last psn=2
			<- READ-Response-First psn=3
			<- READ-Response-Last psn=4`},
		{"a read again while the next one is being answered", nil, `
			burst 1
			-> READ-Request psn=0 len=4 key=1
			-> READ-Request psn=1 len=600 key=1
			-> READ-Request psn=0 len=4 key=1
			<- READ-Response-Only psn=0
			<- READ-Response-First psn=1
			<- READ-Response-Only psn=0
			<- READ-Response-Middle psn=2
			<- READ-Response-Last psn=3`},
		{"a read again that is still to be answered", nil, `
			burst 1
			-> READ-Request psn=0 len=600 key=1
			-> READ-Request psn=3 len=4 key=1
			-> READ-Request psn=3 len=4 key=1
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-Last psn=2
			<- READ-Response-Only psn=3
			quiet`},
		{"the end of a read again that is still to be answered", nil, `
			burst 1
			-> READ-Request psn=0 len=600 key=1
			-> READ-Request psn=2 len=88 key=1 addr=512
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-Last psn=2
			quiet`},
		{"memory withdrawn within the answer to a read", nil, `
			burst 1
			-> READ-Request psn=0 len=600 key=1
			gone
			<- READ-Response-First psn=0
			<- Acknowledge psn=1 syn=98
			event read-refused
			event broken`},
		{"more reads than were agreed on", nil, `
			burst 1
			-> READ-Request psn=0 len=1000 key=1
			-> READ-Request psn=4 len=1000 key=1
			-> READ-Request psn=8 len=1000 key=1
			-> READ-Request psn=12 len=1000 key=1
			-> READ-Request psn=16 len=1000 key=1
			-> READ-Request psn=20 len=1000 key=1
			event broken`},
		{"an acknowledgement follows the responses before it", nil, `
			recv 10
			burst 1
			-> READ-Request psn=0 len=600 key=1
			-> SEND-Only psn=3 n=4 a=1
			<- READ-Response-First psn=0
			<- READ-Response-Middle psn=1
			<- READ-Response-Last psn=2
			<- Acknowledge psn=3 syn=31 msn=2`},
		{"a read beyond its region", nil, `
			-> READ-Request psn=0 len=1001 key=1
			<- Acknowledge psn=0 syn=98
			event read-refused
			event broken`},
		{"reads are not allowed", func(c *rc.Config) { c.AllowRead = false }, `
			-> READ-Request psn=0 len=8 key=1
			<- Acknowledge psn=0 syn=97`},
		{"no read may be in flight", func(c *rc.Config) { c.PeerReads = 0 }, `
			-> READ-Request psn=0 len=8 key=1
			<- Acknowledge psn=0 syn=97`},
		{"another service's packets", nil, "recv 9\n-> UC-SEND-Only psn=0 n=4\nquiet\nnothing"},
	})
}
