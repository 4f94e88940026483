package rc_test

import (
	"testing"

	"github.com/viablk/viablk/via/roce/rc"
)

// TestLife: what the peer does in turn is life; what it repeats, what is ahead,
// and what this end does is none: who only replays packets shows no life.
func TestLife(t *testing.T) {
	playRules(t, []rule{
		{"the next request is life, again it is none", nil, `
			recv 10
			recv 10
			silent
			-> SEND-Only psn=0 n=5
			alive
			-> SEND-Only psn=0 n=5
			silent
			-> SEND-Only psn=2 n=5
			silent
			-> SEND-Only psn=1 n=5
			alive`},
		{"a part of a message is life", nil, `
			recv 600
			-> SEND-First psn=0 n=256
			alive
			-> SEND-Middle psn=1 n=256
			alive`},
		{"an acknowledgement is life, once", nil, `
			post send 600
			<- SEND-First psn=0 n=256
			<- SEND-Middle psn=1 n=256
			<- SEND-Last psn=2 n=88
			silent
			-> Acknowledge psn=1 syn=31
			alive
			-> Acknowledge psn=1 syn=31
			-> Acknowledge psn=0 syn=31
			-> Acknowledge psn=9 syn=31
			silent
			-> Acknowledge psn=2 syn=31
			alive`},
		{"a response is life, once, also behind a gap", nil, `
			post read 600
			<- READ-Request psn=0 len=600
			silent
			-> READ-Response-First psn=0 n=256 syn=31
			alive
			-> READ-Response-First psn=0 n=256 syn=31
			silent
			-> READ-Response-Last psn=2 n=88 syn=31
			alive`},
		{"an unreliable peer's next message is life", func(c *rc.Config) { c.Unreliable = true }, `
			recv 10
			post send 10
			<- UC-SEND-Only psn=0 n=10
			silent
			-> UC-SEND-Only psn=0 n=5
			alive`},
	})
}
