package initiator_test

import (
	"context"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// answersPerSend is how many answers a trailingCQ reports before the end of a
// Send.
const answersPerSend = 2

// trailingProvider is a provider that reports the end of a Send only after
// the answer, and the one to the next Send, as a device may that handles
// acknowledgements and messages apart; or together with the answer, behind it.
type trailingProvider struct {
	via.Provider
	together bool
}

// Open opens a device.
func (p trailingProvider) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return trailingAdapter{a, p.together}, err
}

type trailingAdapter struct {
	via.Adapter
	together bool
}

func (a trailingAdapter) NewCQ(entries int) (via.AdapterCQ, error) {
	q, err := a.Adapter.NewCQ(entries)
	return &trailingCQ{AdapterCQ: q, together: a.together}, err
}

func (a trailingAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*trailingCQ).AdapterCQ, cfg.RecvCQ.(*trailingCQ).AdapterCQ
	return a.Adapter.Connect(ctx, host, hello, cfg)
}

// trailingCQ keeps the ends of Sends.
type trailingCQ struct {
	via.AdapterCQ
	together bool
	sends    []via.Done
	answers  []int // reported since each of sends
}

// Poll reports everything but Sends at once, and a Send when nothing else is
// left.
func (q *trailingCQ) Poll(dst []via.Done) int {
	var batch [16]via.Done
	got := q.AdapterCQ.Poll(batch[:min(len(dst), len(batch))])
	n := 0
	for _, d := range batch[:got] {
		if d.Work != nil && d.Work.Op == via.OpSend && d.Work.Status == 0 {
			q.sends, q.answers = append(q.sends, d), append(q.answers, 0)
			continue
		}
		for i := range q.answers {
			q.answers[i]++
		}
		dst[n] = d
		n++
	}
	for ; q.together && n > 0 && n < len(dst) && len(q.sends) > 0; n++ {
		dst[n] = q.sends[0]
		q.sends, q.answers = q.sends[1:], q.answers[1:]
	}
	if got == 0 && q.due() {
		dst[n] = q.sends[0]
		n++
		q.sends, q.answers = q.sends[1:], q.answers[1:]
	}
	return n
}

func (q *trailingCQ) due() bool { return len(q.sends) != 0 && q.answers[0] >= answersPerSend }

// Arm refuses while Poll has something.
func (q *trailingCQ) Arm() bool { return !q.due() && q.AdapterCQ.Arm() }

// TestLateSends: an initiator whose Sends end after their answers lists disks,
// attaches one, and uses it.
func TestLateSends(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) { testLateSends(t, serve, false) })
		t.Run(name+", together", func(t *testing.T) { testLateSends(t, serve, true) })
	}
}

// testLateSends uses a disk of a target.
func testLateSends(t *testing.T, serve func(testing.TB, target.Config, ...string) *remote, together bool) {
	r := serve(t, target.Config{}, "memory:16MiB")
	must(t, r.nic.Close())
	var err error
	r.nic, err = via.OpenNic(trailingProvider{shm.New(shm.Options{}), together}, "")
	must(t, err)
	cfg := initiator.Config{NIC: r.nic, Host: r.host}
	if r.folder != "" {
		cfg.Security = initiatorSecurity(r.folder, "alice", targetName)
	}
	list, err := initiator.Discover(t.Context(), cfg)
	if err != nil || len(list) != 1 {
		t.Errorf("list %+v, %v", list, err)
	}
	d := r.dial(t, "a", nil)
	out, in := make([]byte, 4096), make([]byte, 4096)
	pattern(out, 1)
	for range 50 {
		_, err := d.WriteAt(out, 0)
		must(t, err)
		_, err = d.ReadAt(in, 0)
		must(t, err)
	}
	if string(in) != string(out) {
		t.Error("other data than was written")
	}
}
