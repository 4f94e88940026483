package bench

import (
	"encoding/binary"
	"math"

	"github.com/viablk/viablk/via"
)

// offStatus is the status field of a descriptor (VIA 1.0, descriptors).
const offStatus = 28

// viStream is one VI of a circuit with its descriptors, which are used in turn:
// VIA completes each queue in the order of its posts, so that counters say
// which.
type viStream struct {
	vi  *via.VI
	out []*via.Descriptor // sends or RDMA
	in  []*via.Descriptor // receives, all posted

	// flush is the send that asks the consumer for its credits.
	flush *via.Descriptor

	nextOut, nextIn int
	posted, sent    uint64 // sends posted, completed
	credit          int    // messages that the peer has receives for
	spent           int    // receives that are to be posted again
	owed            int    // answers or credits that the peer is to get
	asked           bool   // the peer waits for its credits
	touched         bool   // it has something owed
}

// unlimited is the credit of what needs no receive.
const unlimited = math.MaxInt

// again prepares a descriptor that completed for the same operation: of what it
// says, only its status has changed.
func again(d *via.Descriptor) *via.Descriptor {
	binary.LittleEndian.PutUint32(d.Bytes()[offStatus:], 0)
	return d
}

// full reports whether every send descriptor is posted.
func (l *viStream) full() bool { return l.posted-l.sent == uint64(len(l.out)) }

// next returns the send descriptor to post next.
func (l *viStream) next() *via.Descriptor {
	d := l.out[l.nextOut]
	if l.nextOut++; l.nextOut == len(l.out) {
		l.nextOut = 0
	}
	l.posted++
	return again(d)
}

// stage posts the next send without a doorbell.
func (l *viStream) stage() error { return l.vi.StageSend(l.next()) }

// stageFlush posts the send that asks for credits, in place of the next.
func (l *viStream) stageFlush() error {
	l.next()
	return l.vi.StageSend(again(l.flush))
}

// repost posts the receives that completed.
func (l *viStream) repost() error {
	for ; l.spent > 0; l.spent-- {
		d := l.in[l.nextIn]
		if l.nextIn++; l.nextIn == len(l.in) {
			l.nextIn = 0
		}
		if err := l.vi.PostRecv(again(d)); err != nil {
			return err
		}
	}
	return nil
}
