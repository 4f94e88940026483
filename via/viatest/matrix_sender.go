package viatest

import (
	"encoding/binary"

	"github.com/viablk/viablk/via"
)

// senderRows are the errors that S meets before the fabric sees anything.
func senderRows() []row {
	overrun := [3]expectation{
		{staysConnected: true, atSender: hears(via.AsyncOverrun)},
		{atSender: hears(via.AsyncOverrun)},
		{atSender: hears(via.AsyncOverrun)},
	}
	return []row{
		{1, "SenderDescriptor", []variant{
			{name: "reserved control bit", act: spoiled(reservedBit), want: localBit(format)},
			{name: "segment of a dead region", act: spoiled(deadSegment), want: localBit(protection)},
			{name: "length that is not the sum", act: spoiled(wrongLength), want: localBit(length)},
		}},
		{2, "PostError", []variant{
			{name: "misaligned send", act: badPost(misaligned, false), want: postError},
			{name: "send in dead memory", act: badPost(deadMemory, false), want: postError},
			{name: "send in memory of another tag", act: badPost(foreignMemory, false), want: postError},
			{name: "misaligned receive", act: badPost(misaligned, true), want: postError},
			{name: "receive in dead memory", act: badPost(deadMemory, true), want: postError},
			{name: "receive in memory of another tag", act: badPost(foreignMemory, true), want: postError},
		}},
		{3, "Overrun", []variant{
			{name: "send queue", depth: 5, act: sendQueueOverrun, want: overrun},
			{name: "receive queue", depth: 5, act: receiveQueueOverrun, want: overrun},
		}},
	}
}

// localBit is an error that S's descriptor alone tells of.
func localBit(bit via.Status) [3]expectation {
	return [3]expectation{{staysConnected: true, sender: can(bit)}, {sender: can(bit)}, {sender: can(bit)}}
}

var postError = [3]expectation{
	{staysConnected: true, atSender: hears(via.AsyncPostDescriptor)},
	{atSender: hears(via.AsyncPostDescriptor)},
	{atSender: hears(via.AsyncPostDescriptor)},
}

// spoiled posts a Send that something is wrong with.
func spoiled(spoil func(s *errCase, d *via.Descriptor)) func(s *errCase) {
	return func(s *errCase) {
		s.receives(3)
		d := s.badSend(s.guarded(s.client, 40))
		spoil(s, d)
		s.strike(d)
	}
}

func reservedBit(_ *errCase, d *via.Descriptor) { d.Bytes()[15] |= 0x80 }

func wrongLength(_ *errCase, d *via.Descriptor) { binary.LittleEndian.PutUint32(d.Bytes()[24:], 41) }

func deadSegment(s *errCase, d *via.Descriptor) {
	b := s.guarded(s.client, 40)
	m := s.region(s.client, b, via.MemAttributes{Ptag: s.client.tag})
	s.check(m.Deregister(), "deregister")
	d.Reset(via.OpSend)
	d.AddSegment(m.Addr(), m.Handle(), 40)
}

// badPost posts a descriptor that the call refuses.
func badPost(make func(s *errCase) *via.Descriptor, recv bool) func(s *errCase) {
	return func(s *errCase) {
		s.receives(2)
		s.named = make(s)
		if recv {
			build(s.named, via.OpRecv, nil, nil)
			s.wants(s.client.vi.PostRecv(s.named), via.ErrInvalidParameter, "post a receive")
		} else {
			build(s.named, via.OpSend, nil, nil)
			s.wants(s.client.vi.PostSend(s.named), via.ErrInvalidParameter, "post a send")
		}
		s.follow()
	}
}

func misaligned(s *errCase) *via.Descriptor {
	d, err := s.client.descs.NewDescriptor(s.client.dused+8, 64)
	s.check(err, "make descriptor")
	s.client.dused += 128
	return d
}

func deadMemory(s *errCase) *via.Descriptor {
	d, m := s.elsewhere(s.client, s.client.tag)
	s.check(m.Deregister(), "deregister")
	return d
}

func foreignMemory(s *errCase) *via.Descriptor {
	tag, err := s.client.nic.CreatePtag()
	s.check(err, "create tag")
	d, _ := s.elsewhere(s.client, tag)
	return d
}

func sendQueueOverrun(s *errCase) {
	s.receives(5)
	for range 5 {
		_, n := s.message()
		s.early = append(s.early, n)
	}
	s.named = build(s.client.desc(0), via.OpSend, nil, nil)
	s.wants(s.client.vi.PostSend(s.named), via.ErrResource, "post one send more")
	s.client.vi.Doorbell()
}

func receiveQueueOverrun(s *errCase) {
	s.receives(2)
	for range 5 {
		s.client.recv()
	}
	s.named = build(s.client.desc(0), via.OpRecv, nil, nil)
	s.wants(s.client.vi.PostRecv(s.named), via.ErrResource, "post one receive more")
	if s.unreliable() {
		s.mark(s.server, s.client) // makes room
	}
	s.follow()
}
