package rc_test

import (
	"testing"

	"github.com/viablk/viablk/via/roce/rc"
)

func TestRequesterRules(t *testing.T) {
	selective := func(c *rc.Config) { c.Stash, c.Selective = rc.NewStash(8), true }
	playRules(t, []rule{
		{"an acknowledgement ends all before it", nil, `
			post send 5
			post write 300
			post send 6 imm
			<- SEND-Only psn=0 n=5 a=1
			<- WRITE-First psn=1 n=256 len=300 key=1
			<- WRITE-Last psn=2 n=44 a=1
			<- SEND-Only-with-Immediate psn=3 n=6 a=1
			-> Acknowledge psn=2 syn=31
			done ok
			done ok
			nothing
			-> Acknowledge psn=3 syn=31
			done ok`},
		{"immediate data of a long write", nil, `
			post write 257 imm
			<- WRITE-First psn=0 n=256 len=257
			<- WRITE-Last-with-Immediate psn=1 n=1 a=1`},
		{"answers to what was never sent, or is complete", nil, `
			post send 5
			<- SEND-Only psn=0 n=5
			-> Acknowledge psn=1 syn=31
			-> Acknowledge psn=-1 syn=31
			-> Acknowledge psn=1 syn=96
			-> Acknowledge psn=-1 syn=98
			-> READ-Response-Only psn=0 syn=31 n=5
			nothing
			-> Acknowledge psn=0 syn=31
			done ok
			-> Acknowledge psn=0 syn=98
			nothing`},
		{"a sequence error goes back, cut in the same way", nil, `
			post send 300
			post send 5
			<- SEND-First psn=0 n=256
			<- SEND-Last psn=1 n=44
			<- SEND-Only psn=2 n=5
			-> Acknowledge psn=1 syn=96
			<- SEND-Last psn=1 n=44 a=1
			<- SEND-Only psn=2 n=5 a=1
			quiet
			-> Acknowledge psn=2 syn=31
			done ok
			done ok`},
		{"a sequence error acknowledges what is before it", nil, `
			post send 5
			post send 6
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			-> Acknowledge psn=1 syn=96
			done ok
			<- SEND-Only psn=1 n=6
			nothing`},
		{"a selective peer gets what is missing", selective, `
			post send 5
			post send 6
			post send 7
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			<- SEND-Only psn=2
			-> Acknowledge psn=1 syn=96
			<- SEND-Only psn=1 n=6
			quiet
			-> Acknowledge psn=2 syn=31
			done ok
			done ok
			done ok`},
		{"silence: one packet, and then all", nil, `
			post send 5
			post send 6
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			wait 19ms
			quiet
			wait 1ms
			<- SEND-Only psn=0 n=5 a=1
			quiet
			-> Acknowledge psn=0 syn=31
			<- SEND-Only psn=1 n=6
			wait 39ms
			quiet
			wait 1ms
			<- SEND-Only psn=1 n=6`},
		{"silence: an acknowledgement was lost", nil, `
			post send 5
			post send 6
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			wait 20ms
			<- SEND-Only psn=0 n=5
			-> Acknowledge psn=1 syn=31
			quiet
			done ok
			done ok`},
		{"a probe is a duplicate, and answered as one", nil, `
			probe
			<- WRITE-Only psn=-1 n=0 len=0 a=1
			-> Acknowledge psn=-1 syn=31
			wait 1h
			quiet
			nothing
			post send 5
			<- SEND-Only psn=0
			-> Acknowledge psn=0 syn=31
			done ok
			probe
			probe
			<- WRITE-Only psn=0 n=0 len=0 a=1
			quiet
			-> Acknowledge psn=-1 syn=31
			wait 20ms
			<- WRITE-Only psn=0 n=0 len=0 a=1
			-> Acknowledge psn=0 syn=31
			wait 1h
			quiet`},
		{"a probe of a peer that is gone", nil, `
			probe
			<- WRITE-Only psn=-1
			wait 20ms
			<- WRITE-Only psn=-1
			wait 40ms
			<- WRITE-Only psn=-1
			wait 80ms
			<- WRITE-Only psn=-1
			wait 100ms
			<- WRITE-Only psn=-1
			wait 100ms
			quiet
			event broken`},
		{"a work replaces the probe", nil, `
			probe
			<- WRITE-Only psn=-1
			post send 5
			<- SEND-Only psn=0
			-> Acknowledge psn=0 syn=31
			done ok
			wait 1h
			quiet`},
		{"works in flight are a probe", nil, `
			post send 5
			<- SEND-Only psn=0
			probe
			quiet
			-> Acknowledge psn=0 syn=31
			done ok`},
		{"silence for ever", nil, `
			post send 5
			post send 6
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			wait 20ms
			<- SEND-Only psn=0
			wait 40ms
			<- SEND-Only psn=0
			wait 80ms
			<- SEND-Only psn=0
			wait 100ms
			<- SEND-Only psn=0
			wait 100ms
			quiet
			done retries exceeded
			done flushed
			event broken`},
		{"no receive at the peer", nil, `
			post send 5
			post send 6
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			-> Acknowledge psn=0 syn=46
			wait 1270us
			quiet
			wait 10us
			<- SEND-Only psn=0
			<- SEND-Only psn=1
			-> Acknowledge psn=1 syn=46
			done ok
			wait 2ms
			<- SEND-Only psn=1
			-> Acknowledge psn=1 syn=46
			done RNR retries exceeded
			event broken`},
		{"refusals", nil, `
			post send 5
			post write 6
			post send 7
			<- SEND-Only psn=0
			<- WRITE-Only psn=1
			<- SEND-Only psn=2
			-> Acknowledge psn=1 syn=98
			done ok
			done remote access error
			done flushed
			event broken
			quiet`},
		{"invalid request", nil, "post send 5\n<- SEND-Only psn=0\n-> Acknowledge psn=0 syn=97\ndone remote invalid request"},
		{"operational error", nil, "post send 5\n<- SEND-Only psn=0\n-> Acknowledge psn=0 syn=99\ndone remote operational error"},
		{"a read", nil, `
			post read 600
			post send 5
			<- READ-Request psn=0 len=600 key=1
			<- SEND-Only psn=3
			-> READ-Response-First psn=0 n=256 syn=31
			-> READ-Response-Middle psn=1 n=256
			nothing
			-> READ-Response-Last psn=2 n=88 syn=31
			done ok
			nothing
			-> Acknowledge psn=3 syn=31
			done ok`},
		{"reads of no more than there is room for", func(c *rc.Config) { c.Reads, c.Room = 8, 8 }, `
			post read 3000
			post send 5
			<- READ-Request psn=0 len=512
			<- READ-Request psn=2 len=512
			<- READ-Request psn=4 len=512
			<- READ-Request psn=6 len=512
			quiet
			-> READ-Response-First psn=0 n=256 syn=31
			quiet
			-> READ-Response-Last psn=1 n=256 syn=31
			<- READ-Request psn=8 len=512
			quiet
			-> READ-Response-First psn=2 n=256 syn=31
			-> READ-Response-Last psn=3 n=256 syn=31
			<- READ-Request psn=10 len=440
			<- SEND-Only psn=12 n=5`},
		{"writes are bounded by the peer's room alone", func(c *rc.Config) { c.Room = 1 }, `
			post write 1000
			<- WRITE-First psn=0
			<- WRITE-Middle psn=1
			<- WRITE-Middle psn=2
			<- WRITE-Last psn=3`},
		{"a response acknowledges what is before its request", nil, `
			post send 5
			post read 6
			<- SEND-Only psn=0
			<- READ-Request psn=1 len=6
			-> READ-Response-Only psn=1 n=6 syn=31
			done ok
			done ok`},
		{"responses are lost, the acknowledgement behind them tells", nil, `
			post read 600
			post send 5
			<- READ-Request psn=0 len=600
			<- SEND-Only psn=3
			-> READ-Response-First psn=0 n=256 syn=31
			-> Acknowledge psn=3 syn=31
			nothing
			<- READ-Request psn=1 len=344 addr=256
			quiet
			-> READ-Response-First psn=1 n=256 syn=31
			-> READ-Response-Last psn=2 n=88 syn=31
			done ok
			done ok`},
		{"a response is lost, the one behind it tells", nil, `
			post read 600
			<- READ-Request psn=0 len=600
			-> READ-Response-First psn=0 n=256 syn=31
			-> READ-Response-Last psn=2 n=88 syn=31
			<- READ-Request psn=1 len=256 addr=256
			-> READ-Response-Only psn=1 n=256 syn=31
			done ok
			-> READ-Response-Only psn=1 n=256 syn=31
			quiet
			nothing`},
		{"a response of another length", nil, `
			post read 6
			<- READ-Request psn=0 len=6
			-> READ-Response-Only psn=0 n=7 syn=31
			nothing`},
		{"no more reads than the peer serves", nil, `
			post read 6
			post read 7
			post read 8
			<- READ-Request psn=0 len=6
			<- READ-Request psn=1 len=7
			quiet
			-> READ-Response-Only psn=0 n=6 syn=31
			done ok
			<- READ-Request psn=2 len=8`},
		{"memory of a work is gone", nil, `
			post send 5
			gone
			quiet
			done local protection
			event broken`},
		{"reads without agreed depth", func(c *rc.Config) { c.Reads = 0 }, `
			post send 5
			post read 5
			<- SEND-Only psn=0
			nothing
			-> Acknowledge psn=0 syn=31
			quiet
			done ok
			done invalid work
			event broken`},
		{"a congestion notification", nil, "post send 5\n<- SEND-Only psn=0\n-> CNP psn=0 n=16\nquiet\nnothing"},
	})
}
