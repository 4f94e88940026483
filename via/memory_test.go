package via

import (
	"errors"
	"strings"
	"sync"
	"testing"
)

func TestRegistrationBudgets(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	var all []*Memory
	size := int(b.p.limits.MaxRegisterBlockBytes)
	block := make([]byte, size+1)
	attrs := MemAttributes{Ptag: b.tag}
	_, err := b.nic.RegisterMem(block, attrs)
	b.wants(err, ErrInvalidParameter, "register more than a block")
	used := len(b.mem.bytes)
	for ; used+size <= int(b.p.limits.MaxRegisterBytes); used += size {
		m, err := b.nic.RegisterMem(block[:size], attrs)
		b.must(err)
		all = append(all, m)
	}
	_, err = b.nic.RegisterMem(block[:size], attrs)
	b.wants(err, ErrResource, "register more than the nic's bytes")
	b.must(all[0].Deregister())
	m, err := b.nic.RegisterMem(block[:size], attrs)
	b.must(err)
	all[0] = m
	for _, m := range all {
		b.must(m.Deregister())
	}
	for range b.p.limits.MaxRegisterRegions - 1 {
		_, err := b.nic.RegisterMem(block[:1], attrs)
		b.must(err)
	}
	_, err = b.nic.RegisterMem(block[:1], attrs)
	b.wants(err, ErrResource, "register more than the nic's regions")
}

// A registration that the provider refuses leaves no trace.
func TestProviderRefusesRegistration(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	tag, err := b.nic.CreatePtag()
	b.must(err)
	cause := errors.New("table is full")
	b.p.fail = cause
	before := b.nic.agent.registered
	_, err = b.nic.RegisterMem(make([]byte, 100), MemAttributes{Ptag: tag})
	b.wants(err, cause, "register")
	b.wants(b.mem.SetAttributes(MemAttributes{Ptag: b.tag}), cause, "set attributes")
	if b.nic.agent.registered != before || b.nic.regions.live() != 1 {
		t.Errorf("%d bytes and %d regions remain booked", b.nic.agent.registered-before, b.nic.regions.live()-1)
	}
	b.must(b.nic.DestroyPtag(tag))
	b.p.fail = nil
}

func TestReadAccessNeedsTheCapability(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.nic.agent.limits.RdmaReadLevels = 0
	_, err := b.nic.RegisterMem(b.mem.bytes[:8], MemAttributes{Ptag: b.tag, EnableRdmaRead: true})
	b.wants(err, ErrInvalidRdmaRead, "register for rdma read")
	b.wants(b.mem.SetAttributes(MemAttributes{Ptag: b.tag, EnableRdmaRead: true}), ErrInvalidRdmaRead, "set for rdma read")
}

// A tag's count is right whatever order Deregister and SetAttributes take.
func TestAttributesWhileDeregistered(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	other, err := b.nic.CreatePtag()
	b.must(err)
	for range 500 {
		m, err := b.nic.RegisterMem(b.mem.bytes[:64], MemAttributes{Ptag: b.tag})
		b.must(err)
		var wg sync.WaitGroup
		wg.Add(2)
		go func() {
			defer wg.Done()
			if err := m.SetAttributes(MemAttributes{Ptag: other}); err != nil && !errors.Is(err, ErrInvalidParameter) {
				t.Error(err)
			}
		}()
		go func() {
			defer wg.Done()
			if err := m.Deregister(); err != nil {
				t.Error(err)
			}
		}()
		wg.Wait()
	}
	b.must(b.nic.DestroyPtag(other))
}

func TestLimitsOfObjects(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	cfg := ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 1, RecvDepth: 1}
	for range b.p.limits.MaxVI - 1 {
		_, err := b.nic.CreateVi(b.vi.attrs, cfg)
		b.must(err)
	}
	_, err := b.nic.CreateVi(b.vi.attrs, cfg)
	b.wants(err, ErrResource, "create one vi too many")
	for range b.p.limits.MaxCQ - 1 {
		_, err := b.nic.CreateCQ(1)
		b.must(err)
	}
	_, err = b.nic.CreateCQ(1)
	b.wants(err, ErrResource, "create one completion queue too many")
	for range b.p.limits.MaxPtags - 1 {
		_, err := b.nic.CreatePtag()
		b.must(err)
	}
	_, err = b.nic.CreatePtag()
	b.wants(err, ErrResource, "create one tag too many")
}

func TestTexts(t *testing.T) {
	for e := ErrNotDone; e <= ErrNotSupported; e++ {
		if s := e.Error(); s == "" || strings.HasPrefix(s, "unknown") {
			t.Errorf("return code %d has no text", e)
		}
	}
	for c := AsyncPostDescriptor; c <= AsyncCatastrophic; c++ {
		if s := c.String(); s == "" || strings.HasPrefix(s, "unknown") {
			t.Errorf("asynchronous error %d has no text", c)
		}
	}
	for got, want := range map[string]string{
		Error(0).Error():           "unknown via error",
		Error(99).Error():          "unknown via error",
		AsyncCode(-1).String():     "unknown asynchronous error",
		Status(0).String():         "pending",
		StatusDone.String():        "ok",
		State(9).String():          "invalid",
		StateConnected.String():    "connected",
		Address{"h", "d"}.String(): "h#d",
		(StatusDone | StatusFlushed | StatusLengthError).String(): "length error, flushed",
		ReliableDelivery.String():                                 "reliable delivery",
		ReliabilityLevel(3).String():                              "invalid reliability level",
	} {
		if got != want {
			t.Errorf("text %q, want %q", got, want)
		}
	}
}
