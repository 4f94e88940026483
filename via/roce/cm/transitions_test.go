package cm_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// ways bring a connection into each state.
var ways = map[string]func(*script){
	"req-sent":             (*script).asking,
	"req-received":         (*script).requested,
	"rep-sent":             (*script).answered,
	"rep-received":         (*script).granted,
	"established, active":  (*script).established,
	"established, passive": (*script).establishedPassive,
	"dreq-sent, active":    (*script).disconnecting,
	"dreq-sent, passive":   (*script).disconnectingPassive,
	"disconnected":         (*script).disconnected,
	"abandoned":            (*script).abandoned,
	"rejected":             (*script).rejected,
	"withdrawn":            (*script).withdrawn,
	"released":             (*script).released,
}

// messages are the messages that a peer can send.
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

// transitions are the effects of each message in each state: messages to the
// peer and events, then the next state; and the counters that grow.
const transitions = `
req-sent               | REQ      | other requested, req-sent                    |
req-sent               | MRA REQ  | req-sent                                     |
req-sent               | MRA REP  | req-sent                                     | duplicate
req-sent               | REJ      | rejected, released, gone                     |
req-sent               | REJ 10   | rejected, time-wait                          |
req-sent               | REJ GUID | req-sent                                     | unknown ID
req-sent               | REP      | granted, rep-received                        |
req-sent               | RTU      | req-sent                                     | duplicate
req-sent               | DREQ     | req-sent                                     | bad source
req-sent               | DREP     | req-sent                                     | bad source

rep-received           | REQ      | REJ 10, rep-received                         | refused
rep-received           | MRA REQ  | rep-received                                 | duplicate
rep-received           | MRA REP  | rep-received                                 | duplicate
rep-received           | REJ      | rejected, time-wait                          |
rep-received           | REJ 10   | rejected, time-wait                          |
rep-received           | REJ GUID | rep-received                                 | unknown ID
rep-received           | REP      | MRA, rep-received                            | duplicate
rep-received           | RTU      | rep-received                                 | duplicate
rep-received           | DREQ     | DREP, disconnected, time-wait                |
rep-received           | DREP     | rep-received                                 | duplicate

established, active    | REQ      | REJ 10, suspected, established               | refused
established, active    | MRA REQ  | established                                  | duplicate
established, active    | MRA REP  | established                                  | duplicate
established, active    | REJ      | disconnected, time-wait                      |
established, active    | REJ 10   | disconnected, time-wait                      |
established, active    | REJ GUID | established                                  | unknown ID
established, active    | REP      | RTU, established                             | duplicate
established, active    | RTU      | established                                  | duplicate
established, active    | DREQ     | DREP, disconnected, time-wait                |
established, active    | DREP     | established                                  | duplicate

req-received           | REQ      | MRA, req-received                            | duplicate
req-received           | MRA REQ  | req-received                                 | duplicate
req-received           | MRA REP  | req-received                                 | duplicate
req-received           | REJ      | rejected, time-wait                          |
req-received           | REJ 10   | rejected, time-wait                          |
req-received           | REJ GUID | rejected, time-wait                          |
req-received           | REP      | req-received                                 | bad source
req-received           | RTU      | req-received                                 | duplicate
req-received           | DREQ     | req-received                                 | bad source
req-received           | DREP     | req-received                                 | duplicate

rep-sent               | REQ      | REP, rep-sent                                | duplicate
rep-sent               | MRA REQ  | rep-sent                                     | duplicate
rep-sent               | MRA REP  | rep-sent                                     |
rep-sent               | REJ      | rejected, time-wait                          |
rep-sent               | REJ 10   | rejected, time-wait                          |
rep-sent               | REJ GUID | rejected, time-wait                          |
rep-sent               | REP      | rep-sent                                     | bad source
rep-sent               | RTU      | established, established                     |
rep-sent               | DREQ     | DREP, disconnected, time-wait                |
rep-sent               | DREP     | rep-sent                                     | duplicate

established, passive   | REQ      | established                                  | duplicate
established, passive   | MRA REQ  | established                                  | duplicate
established, passive   | MRA REP  | established                                  | duplicate
established, passive   | REJ      | disconnected, time-wait                      |
established, passive   | REJ 10   | disconnected, time-wait                      |
established, passive   | REJ GUID | disconnected, time-wait                      |
established, passive   | REP      | established                                  | bad source
established, passive   | RTU      | established                                  | duplicate
established, passive   | DREQ     | DREP, disconnected, time-wait                |
established, passive   | DREP     | established                                  | duplicate

dreq-sent, active      | REQ      | REJ 10, dreq-sent                            | refused
dreq-sent, active      | MRA REQ  | dreq-sent                                    | duplicate
dreq-sent, active      | MRA REP  | dreq-sent                                    | duplicate
dreq-sent, active      | REJ      | disconnected, time-wait                      |
dreq-sent, active      | REJ 10   | disconnected, time-wait                      |
dreq-sent, active      | REJ GUID | dreq-sent                                    | unknown ID
dreq-sent, active      | REP      | DREQ, dreq-sent                              | duplicate
dreq-sent, active      | RTU      | dreq-sent                                    | duplicate
dreq-sent, active      | DREQ     | DREP, disconnected, time-wait                |
dreq-sent, active      | DREP     | disconnected, time-wait                      |

dreq-sent, passive     | REQ      | dreq-sent                                    | duplicate
dreq-sent, passive     | MRA REQ  | dreq-sent                                    | duplicate
dreq-sent, passive     | MRA REP  | dreq-sent                                    | duplicate
dreq-sent, passive     | REJ      | disconnected, time-wait                      |
dreq-sent, passive     | REJ 10   | disconnected, time-wait                      |
dreq-sent, passive     | REJ GUID | disconnected, time-wait                      |
dreq-sent, passive     | REP      | dreq-sent                                    | bad source
dreq-sent, passive     | RTU      | dreq-sent                                    | duplicate
dreq-sent, passive     | DREQ     | DREP, disconnected, time-wait                |
dreq-sent, passive     | DREP     | disconnected, time-wait                      |

disconnected           | REQ      | REJ 10, time-wait                            | refused
disconnected           | MRA REQ  | time-wait                                    | duplicate
disconnected           | MRA REP  | time-wait                                    | duplicate
disconnected           | REJ      | time-wait                                    | duplicate
disconnected           | REJ 10   | time-wait                                    | duplicate
disconnected           | REJ GUID | time-wait                                    | unknown ID
disconnected           | REP      | REJ 6, time-wait                             | unknown ID
disconnected           | RTU      | time-wait                                    | duplicate
disconnected           | DREQ     | DREP, time-wait                              | duplicate
disconnected           | DREP     | time-wait                                    | duplicate

abandoned              | REQ      | other requested, time-wait                   |
abandoned              | MRA REQ  | time-wait                                    | duplicate
abandoned              | MRA REP  | time-wait                                    | duplicate
abandoned              | REJ      | time-wait                                    | duplicate
abandoned              | REJ 10   | time-wait                                    | duplicate
abandoned              | REJ GUID | time-wait                                    | unknown ID
abandoned              | REP      | REJ 6, time-wait                             | unknown ID
abandoned              | RTU      | time-wait                                    | duplicate
abandoned              | DREQ     | time-wait                                    | bad source
abandoned              | DREP     | time-wait                                    | bad source

rejected               | REQ      | REJ 28, time-wait                            | duplicate
rejected               | MRA REQ  | time-wait                                    | duplicate
rejected               | MRA REP  | time-wait                                    | duplicate
rejected               | REJ      | time-wait                                    | duplicate
rejected               | REJ 10   | time-wait                                    | duplicate
rejected               | REJ GUID | time-wait                                    | duplicate
rejected               | REP      | time-wait                                    | bad source
rejected               | RTU      | REJ 28, time-wait                            | duplicate
rejected               | DREQ     | time-wait                                    | bad source
rejected               | DREP     | time-wait                                    | duplicate

withdrawn              | REQ      | time-wait                                    | duplicate
withdrawn              | MRA REQ  | time-wait                                    | duplicate
withdrawn              | MRA REP  | time-wait                                    | duplicate
withdrawn              | REJ      | time-wait                                    | duplicate
withdrawn              | REJ 10   | time-wait                                    | duplicate
withdrawn              | REJ GUID | time-wait                                    | duplicate
withdrawn              | REP      | time-wait                                    | bad source
withdrawn              | RTU      | time-wait                                    | duplicate
withdrawn              | DREQ     | time-wait                                    | bad source
withdrawn              | DREP     | time-wait                                    | duplicate

released               | REQ      | other requested, gone                        |
released               | MRA REQ  | gone                                         | unknown ID
released               | MRA REP  | gone                                         | unknown ID
released               | REJ      | gone                                         | unknown ID
released               | REJ 10   | gone                                         | unknown ID
released               | REJ GUID | gone                                         | unknown ID
released               | REP      | REJ 6, gone                                  | unknown ID
released               | RTU      | gone                                         | unknown ID
released               | DREQ     | DREP, gone                                   | unknown ID
released               | DREP     | gone                                         | unknown ID
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
			s.deliver(s.peer, messages[cells[1]](s))
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

// Messages with another address, transaction, ID or queue pair do not affect a
// connection.
func TestMessagesFromBadSourceIgnored(t *testing.T) {
	unknownPeer := netip.MustParseAddrPort("10.0.0.3:4791")
	forge := map[string]func(s *script) (from netip.AddrPort, change func()){
		"address": func(s *script) (netip.AddrPort, func()) { return unknownPeer, func() {} },
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
				s.deliver(from, messages[name](s))
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

// A viablk end sends from the port at which it receives; messages from other
// ports are dropped.
func TestOtherPortOfSameKindPeer(t *testing.T) {
	for name, message := range messages {
		s := newScript(t)
		s.vendor = cm.VendorID
		s.establishedPassive()
		s.deliver(s.foreign(), message(s))
		if state := s.m.State(s.id); name != "REQ" && (state != "established" || s.m.Counters().BadSource != 1) {
			t.Errorf("%s: %s, %+v", name, state, s.m.Counters())
		}
	}
}

// matters reports whether a state validates the forged field of a message.
func matters(way, message, how string) bool {
	switch {
	case message == "REQ":
		return how == "address" // with another field it is another request
	case how == "transaction":
		return message != "DREQ" // a new one each time
	case how == "our ID":
		return message != "REJ GUID"
	case how == "its ID":
		return way != "req-sent" // the state does not know it yet
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
		{"unknown ID", a.UnknownID, b.UnknownID},
		{"bad source", a.BadSource, b.BadSource},
		{"refused", a.Refused, b.Refused},
	} {
		if c.after > c.before {
			all = append(all, c.name)
		}
	}
	return strings.Join(all, ", ")
}
