package cm_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// ways are how a connection gets into a state.
var ways = map[string]func(*script){
	"asking":                 (*script).asking,
	"requested":              (*script).requested,
	"answered":               (*script).answered,
	"granted":                (*script).granted,
	"established, active":    (*script).established,
	"established, passive":   (*script).establishedPassive,
	"disconnecting, active":  (*script).disconnecting,
	"disconnecting, passive": (*script).disconnectingPassive,
	"disconnected":           (*script).disconnected,
	"abandoned":              (*script).abandoned,
	"rejected":               (*script).rejected,
	"withdrawn":              (*script).withdrawn,
	"released":               (*script).released,
}

// messages are what a peer can say.
var messages = map[string]func(*script) wire.Message{
	"REQ":      func(s *script) wire.Message { return s.req() },
	"MRA REQ":  func(s *script) wire.Message { return s.mra(wire.AnsweredREQ) },
	"MRA REP":  func(s *script) wire.Message { return s.mra(wire.AnsweredREP) },
	"REJ":      func(s *script) wire.Message { return s.rej(wire.RejectConsumer) },
	"REJ 10":   func(s *script) wire.Message { return s.rej(wire.RejectStale) },
	"REJ GUID": func(s *script) wire.Message { return s.gone() },
	"REP":      func(s *script) wire.Message { return s.rep() },
	"RTU":      func(s *script) wire.Message { return s.rtu() },
	"DREQ":     func(s *script) wire.Message { return s.dreq() },
	"DREP":     func(s *script) wire.Message { return s.drep() },
}

// transitions are what each message does in each state: messages to the peer and
// events, then the state that follows; and what is counted.
const transitions = `
asking                 | REQ      | other requested, asking                      |
asking                 | MRA REQ  | asking                                       |
asking                 | MRA REP  | asking                                       | duplicate
asking                 | REJ      | rejected, released, gone                     |
asking                 | REJ 10   | rejected, time-wait                          |
asking                 | REJ GUID | asking                                       | stray
asking                 | REP      | granted, granted                             |
asking                 | RTU      | asking                                       | duplicate
asking                 | DREQ     | asking                                       | forged
asking                 | DREP     | asking                                       | forged

granted                | REQ      | REJ 10, granted                              | refused
granted                | MRA REQ  | granted                                      | duplicate
granted                | MRA REP  | granted                                      | duplicate
granted                | REJ      | rejected, time-wait                          |
granted                | REJ 10   | rejected, time-wait                          |
granted                | REJ GUID | granted                                      | stray
granted                | REP      | MRA, granted                                 | duplicate
granted                | RTU      | granted                                      | duplicate
granted                | DREQ     | DREP, disconnected, time-wait                |
granted                | DREP     | granted                                      | duplicate

established, active    | REQ      | REJ 10, DREQ, disconnected, time-wait        | refused
established, active    | MRA REQ  | established                                  | duplicate
established, active    | MRA REP  | established                                  | duplicate
established, active    | REJ      | disconnected, time-wait                      |
established, active    | REJ 10   | disconnected, time-wait                      |
established, active    | REJ GUID | established                                  | stray
established, active    | REP      | RTU, established                             | duplicate
established, active    | RTU      | established                                  | duplicate
established, active    | DREQ     | DREP, disconnected, time-wait                |
established, active    | DREP     | established                                  | duplicate

requested              | REQ      | MRA, requested                               | duplicate
requested              | MRA REQ  | requested                                    | duplicate
requested              | MRA REP  | requested                                    | duplicate
requested              | REJ      | rejected, time-wait                          |
requested              | REJ 10   | rejected, time-wait                          |
requested              | REJ GUID | rejected, time-wait                          |
requested              | REP      | requested                                    | forged
requested              | RTU      | requested                                    | duplicate
requested              | DREQ     | requested                                    | forged
requested              | DREP     | requested                                    | duplicate

answered               | REQ      | REP, answered                                | duplicate
answered               | MRA REQ  | answered                                     | duplicate
answered               | MRA REP  | answered                                     |
answered               | REJ      | rejected, time-wait                          |
answered               | REJ 10   | rejected, time-wait                          |
answered               | REJ GUID | rejected, time-wait                          |
answered               | REP      | answered                                     | forged
answered               | RTU      | established, established                     |
answered               | DREQ     | DREP, disconnected, time-wait                |
answered               | DREP     | answered                                     | duplicate

established, passive   | REQ      | established                                  | duplicate
established, passive   | MRA REQ  | established                                  | duplicate
established, passive   | MRA REP  | established                                  | duplicate
established, passive   | REJ      | disconnected, time-wait                      |
established, passive   | REJ 10   | disconnected, time-wait                      |
established, passive   | REJ GUID | disconnected, time-wait                      |
established, passive   | REP      | established                                  | forged
established, passive   | RTU      | established                                  | duplicate
established, passive   | DREQ     | DREP, disconnected, time-wait                |
established, passive   | DREP     | established                                  | duplicate

disconnecting, active  | REQ      | REJ 10, disconnecting                        | refused
disconnecting, active  | MRA REQ  | disconnecting                                | duplicate
disconnecting, active  | MRA REP  | disconnecting                                | duplicate
disconnecting, active  | REJ      | disconnected, time-wait                      |
disconnecting, active  | REJ 10   | disconnected, time-wait                      |
disconnecting, active  | REJ GUID | disconnecting                                | stray
disconnecting, active  | REP      | DREQ, disconnecting                          | duplicate
disconnecting, active  | RTU      | disconnecting                                | duplicate
disconnecting, active  | DREQ     | DREP, disconnected, time-wait                |
disconnecting, active  | DREP     | disconnected, time-wait                      |

disconnecting, passive | REQ      | disconnecting                                | duplicate
disconnecting, passive | MRA REQ  | disconnecting                                | duplicate
disconnecting, passive | MRA REP  | disconnecting                                | duplicate
disconnecting, passive | REJ      | disconnected, time-wait                      |
disconnecting, passive | REJ 10   | disconnected, time-wait                      |
disconnecting, passive | REJ GUID | disconnected, time-wait                      |
disconnecting, passive | REP      | disconnecting                                | forged
disconnecting, passive | RTU      | disconnecting                                | duplicate
disconnecting, passive | DREQ     | DREP, disconnected, time-wait                |
disconnecting, passive | DREP     | disconnected, time-wait                      |

disconnected           | REQ      | REJ 10, time-wait                            | refused
disconnected           | MRA REQ  | time-wait                                    | duplicate
disconnected           | MRA REP  | time-wait                                    | duplicate
disconnected           | REJ      | time-wait                                    | duplicate
disconnected           | REJ 10   | time-wait                                    | duplicate
disconnected           | REJ GUID | time-wait                                    | stray
disconnected           | REP      | REJ 6, time-wait                             | stray
disconnected           | RTU      | time-wait                                    | duplicate
disconnected           | DREQ     | DREP, time-wait                              | duplicate
disconnected           | DREP     | time-wait                                    | duplicate

abandoned              | REQ      | other requested, time-wait                   |
abandoned              | MRA REQ  | time-wait                                    | duplicate
abandoned              | MRA REP  | time-wait                                    | duplicate
abandoned              | REJ      | time-wait                                    | duplicate
abandoned              | REJ 10   | time-wait                                    | duplicate
abandoned              | REJ GUID | time-wait                                    | stray
abandoned              | REP      | REJ 6, time-wait                             | stray
abandoned              | RTU      | time-wait                                    | duplicate
abandoned              | DREQ     | time-wait                                    | forged
abandoned              | DREP     | time-wait                                    | forged

rejected               | REQ      | REJ 28, time-wait                            | duplicate
rejected               | MRA REQ  | time-wait                                    | duplicate
rejected               | MRA REP  | time-wait                                    | duplicate
rejected               | REJ      | time-wait                                    | duplicate
rejected               | REJ 10   | time-wait                                    | duplicate
rejected               | REJ GUID | time-wait                                    | duplicate
rejected               | REP      | time-wait                                    | forged
rejected               | RTU      | REJ 28, time-wait                            | duplicate
rejected               | DREQ     | time-wait                                    | forged
rejected               | DREP     | time-wait                                    | duplicate

withdrawn              | REQ      | time-wait                                    | duplicate
withdrawn              | MRA REQ  | time-wait                                    | duplicate
withdrawn              | MRA REP  | time-wait                                    | duplicate
withdrawn              | REJ      | time-wait                                    | duplicate
withdrawn              | REJ 10   | time-wait                                    | duplicate
withdrawn              | REJ GUID | time-wait                                    | duplicate
withdrawn              | REP      | time-wait                                    | forged
withdrawn              | RTU      | time-wait                                    | duplicate
withdrawn              | DREQ     | time-wait                                    | forged
withdrawn              | DREP     | time-wait                                    | duplicate

released               | REQ      | other requested, gone                        |
released               | MRA REQ  | gone                                         | stray
released               | MRA REP  | gone                                         | stray
released               | REJ      | gone                                         | stray
released               | REJ 10   | gone                                         | stray
released               | REJ GUID | gone                                         | stray
released               | REP      | REJ 6, gone                                  | stray
released               | RTU      | gone                                         | stray
released               | DREQ     | DREP, gone                                   | stray
released               | DREP     | gone                                         | stray
`

func TestTransitions(t *testing.T) {
	rows := 0
	for line := range strings.Lines(transitions) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) == 1 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows++
		t.Run(cells[0]+"; "+cells[1], func(t *testing.T) {
			s := newScript(t)
			ways[cells[0]](s)
			before := s.m.Counters()
			s.hear(s.peer, messages[cells[1]](s))
			if got := s.effects(); got != cells[2] {
				t.Errorf("%s, want %s", got, cells[2])
			}
			if got := counted(before, s.m.Counters()); got != cells[3] {
				t.Errorf("counted %s, want %s", got, cells[3])
			}
		})
	}
	if want := len(ways) * len(messages); rows != want {
		t.Errorf("%d of %d transitions are written down", rows, want)
	}
}

// Whoever is not the peer of a connection does nothing to it: neither with another
// address, nor with another transaction, nor with another of the IDs, nor with
// another queue pair.
func TestForgedMessagesDoNothing(t *testing.T) {
	stranger := netip.MustParseAddrPort("10.0.0.3:4791")
	forge := map[string]func(s *script) (from netip.AddrPort, change func()){
		"address": func(s *script) (netip.AddrPort, func()) { return stranger, func() {} },
		"transaction": func(s *script) (netip.AddrPort, func()) {
			return s.peer, func() { s.tid++; s.end++ }
		},
		"our ID":     func(s *script) (netip.AddrPort, func()) { return s.peer, func() { s.id ^= 0x5000 } },
		"its ID":     func(s *script) (netip.AddrPort, func()) { return s.peer, func() { s.peerID++ } },
		"queue pair": func(s *script) (netip.AddrPort, func()) { return s.peer, func() { s.qp++ } },
	}
	for way := range ways {
		for name := range messages {
			for how := range forge {
				s := newScript(t)
				ways[way](s)
				id, state := s.id, s.m.State(s.id)
				from, change := forge[how](s)
				change()
				if !matters(way, name, how) {
					continue
				}
				s.hear(from, messages[name](s))
				var e cm.Event
				for s.m.Poll(&e) {
					if e.ID == id {
						t.Errorf("%s, %s with another %s: %v", way, name, how, e.Kind)
					}
				}
				if got := s.m.State(id); got != state {
					t.Errorf("%s, %s with another %s: now %s", way, name, how, got)
				}
			}
		}
	}
}

// An own end sends from the port at which it receives, so nobody else does.
func TestOtherPortOfOwnEnd(t *testing.T) {
	for name, message := range messages {
		s := newScript(t)
		s.vendor = cm.VendorID
		s.establishedPassive()
		s.hear(s.foreign(), message(s))
		if state := s.m.State(s.id); name != "REQ" && (state != "established" || s.m.Counters().Forged != 1) {
			t.Errorf("%s: %s, %+v", name, state, s.m.Counters())
		}
	}
}

// matters reports whether a message has the field that is forged, in a state that
// knows its value.
func matters(way, message, how string) bool {
	switch {
	case message == "REQ":
		return how == "address" // else it is another request
	case how == "transaction":
		return message != "DREQ" // a new one each time
	case how == "our ID":
		return message != "REJ GUID"
	case how == "its ID":
		return way != "asking" // which does not know it yet
	case how == "queue pair":
		return message == "DREQ"
	}
	return true
}

// counted returns which counters have grown.
func counted(a, b cm.Counters) string {
	var all []string
	for _, c := range []struct {
		name          string
		before, after uint64
	}{
		{"duplicate", a.Duplicates, b.Duplicates},
		{"malformed", a.Malformed, b.Malformed},
		{"stray", a.Stray, b.Stray},
		{"forged", a.Forged, b.Forged},
		{"refused", a.Refused, b.Refused},
	} {
		if c.after > c.before {
			all = append(all, c.name)
		}
	}
	return strings.Join(all, ", ")
}
