package netbed

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/viablk/viablk/internal/netns"
)

// Packets say which packets a fault may hit. They are an expression of nft(8).
type Packets string

// From are the UDP packets that an address sends.
func From(a netip.Addr) Packets {
	if a.Is6() {
		return Packets(fmt.Sprintf("ip6 saddr %v ", a)) + Datagrams
	}
	return Packets(fmt.Sprintf("ip saddr %v ", a)) + Datagrams
}

// The packets of RoCE are told apart by the first byte behind the UDP header,
// the opcode of the base transport header (InfiniBand specification, volume 1,
// 9.2).
const (
	Datagrams        Packets = "meta l4proto udp"
	Acknowledgements Packets = Datagrams + " @th,64,8 0x11"      // of reliable connections
	ReadResponses    Packets = Datagrams + " @th,64,8 0x0d-0x10" // first, middle, last, only
)

// Chance says which of the packets a fault hits. It is an expression of nft(8).
type Chance string

// Always hits each one.
const Always Chance = ""

// Every hits the first packet and each n-th after it.
func Every(n int) Chance { return Chance(fmt.Sprintf("numgen inc mod %d == 0", n)) }

// parts is how finely a probability is divided.
const parts = 1_000_000

// Randomly hits with a probability, independently.
func Randomly(p float64) Chance {
	return Chance(fmt.Sprintf("numgen random mod %d < %d", parts, int(math.Round(p*parts))))
}

// Fault is switched on from the call that makes it until Stop.
type Fault struct {
	hits func() int
	stop func()
	done bool
}

// Hits returns how many packets were hit so far.
func (f *Fault) Hits() int { return f.hits() }

// Stop switches the fault off. It may be called again; the end of the test
// calls it otherwise.
func (f *Fault) Stop() {
	if !f.done {
		f.done = true
		f.stop()
	}
}

// Lose makes the host lose packets that arrive.
func (h *Host) Lose(p Packets, c Chance) *Fault {
	h.t.Helper()
	return h.rule("inet", "hook input priority 0", p, c, "drop").fault()
}

// Count does nothing to packets that arrive but count them.
func (h *Host) Count(p Packets) *Fault {
	h.t.Helper()
	return h.rule("inet", "hook input priority 1", p, Always, "accept").fault()
}

// Corrupt flips a bit of packets that arrive: of the byte at an offset behind
// the UDP header, 0 to 246. The UDP checksum does not see it, because a veth
// device computes none.
func (h *Host) Corrupt(p Packets, c Chance, offset int) *Fault {
	h.t.Helper()
	at := fmt.Sprintf("@th,%d,8", 64+8*offset)
	hook := fmt.Sprintf("hook ingress device %q priority 0", netns.Device)
	return h.rule("netdev", hook, p, c, at+" set "+at+" ^ 0x40").fault()
}

// Duplicate makes packets arrive twice. The copy goes through lo.
func (h *Host) Duplicate(p Packets, c Chance) *Fault {
	h.t.Helper()
	cable := Packets(fmt.Sprintf("iifname %q ", netns.Device))
	four := h.rule("ip", "hook prerouting priority 0", cable+p, c, "dup to "+h.IPv4.String())
	six := h.rule("ip6", "hook prerouting priority 0", cable+p, c, "dup to "+h.IPv6.String())
	return &Fault{
		hits: func() int { return four.hits() + six.hits() },
		stop: func() { four.remove(); six.remove() },
	}
}

// table is a table of nft with one rule.
type table struct {
	host         *Host
	family, name string
}

// tables numbers the tables of the process.
var tables atomic.Int64

// rule adds a table with a rule that counts the packets that it hits.
func (h *Host) rule(family, hook string, p Packets, c Chance, action string) table {
	h.t.Helper()
	t := table{h, family, "fault" + strconv.FormatInt(tables.Add(1), 10)}
	h.run("nft", strings.Join([]string{
		"table " + family + " " + t.name + " {",
		"counter hits { }",
		"chain hit {",
		"type filter " + hook + "; policy accept;",
		string(p) + " " + string(c) + " counter name hits " + action,
		"}",
		"}",
		"",
	}, "\n"), "-f", "-")
	return t
}

// fault is the fault that the table makes.
func (t table) fault() *Fault { return &Fault{hits: t.hits, stop: t.remove} }

// disarm removes the rule.
func (t table) disarm() {
	t.host.t.Helper()
	t.host.run("nft", "", "flush", "chain", t.family, t.name, "hit")
}

// remove removes the table.
func (t table) remove() {
	t.host.t.Helper()
	t.host.run("nft", "", "delete", "table", t.family, t.name)
}

// hits returns the packets that the rule counted.
func (t table) hits() int {
	h := t.host
	h.t.Helper()
	var list struct {
		Items []struct {
			Counter *struct {
				Packets int `json:"packets"`
			} `json:"counter"`
		} `json:"nftables"`
	}
	out := h.run("nft", "", "-j", "list", "counter", t.family, t.name, "hits")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		h.t.Fatalf("nft: %v\n%s", err, out)
	}
	for _, i := range list.Items {
		if i.Counter != nil {
			return i.Counter.Packets
		}
	}
	h.t.Fatalf("nft lists no counter:\n%s", out)
	return 0
}
