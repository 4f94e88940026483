package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// role is what the passive end does with messages.
type role string

const (
	echo    role = "echo"    // answers each message at once
	consume role = "consume" // takes messages, and says how many it took
	gather  role = "gather"  // answers a batch when all of it has arrived
	bell    role = "bell"    // answers eventfds

	// The yardsticks.
	datagrams role = "datagrams" // answers each datagram at once
	stream    role = "stream"    // takes a stream of TCP
)

// step is what the passive end is to do until it is told to stop.
type step struct {
	Role     role          `json:"role"`
	VIs      int           `json:"vis"`
	Size     int           `json:"size"`     // bytes of a message
	Receives int           `json:"receives"` // of each VI
	Batch    int           `json:"batch"`    // gather: messages of a batch
	Count    int           `json:"count"`    // bell: round trips
	Wait     Wait          `json:"wait"`
	Spin     time.Duration `json:"spin"`
}

// maximumReceives bounds the receives that a peer may ask for.
const maximumReceives = 1 << 18

// check refuses a step that is not within the limits; it comes from a peer.
func (s *step) check(area int) error {
	switch s.Role {
	case bell:
		if s.Count < 0 || s.Count > MaximumOps {
			return fmt.Errorf("%d round trips are too many", s.Count)
		}
		return nil
	case stream:
		return nil
	case datagrams:
		if s.Size < 0 || s.Size > MaximumDatagram {
			return fmt.Errorf("datagrams of %d bytes are longer than %d", s.Size, MaximumDatagram)
		}
		return s.checkWait()
	case echo, consume, gather:
		return errors.Join(s.checkCircuit(area), s.checkWait())
	}
	return fmt.Errorf("unknown role %q", s.Role)
}

func (s *step) checkWait() error {
	if s.Wait != Poll && s.Wait != Spin && s.Wait != Sleep {
		return fmt.Errorf("unknown way to wait %q", s.Wait)
	}
	return nil
}

func (s *step) checkCircuit(area int) error {
	switch {
	case s.VIs < 1 || s.VIs > MaximumVIs || s.Receives < 1 || s.Receives > maximumReceives/s.VIs:
		return fmt.Errorf("%d receives on each of %d VIs are not within the limits", s.Receives, s.VIs)
	case s.Size < 0 || s.Size > area:
		return fmt.Errorf("messages of %d bytes do not fit %d bytes", s.Size, area)
	case s.Role == gather && (s.Batch < 1 || s.Batch > batch):
		return fmt.Errorf("a batch of %d is not within the limits", s.Batch)
	}
	return nil
}

// shape returns what the step's VIs are made for.
func (s *step) shape() shape {
	sh := shape{VIs: s.VIs, Receives: s.Receives, ReceiveSize: s.Size, Sends: s.Receives, SendSize: s.Size}
	if s.Role == consume {
		sh.Sends, sh.SendSize = credits, 0
	}
	return sh
}

// passive is the passive end of a circuit.
type passive struct {
	*circuit
	step    step
	ctl     *control
	touched []*viStream // streams that owe something
	pending int         // gather: messages of the batch that arrived
}

// run does the step until the other end asks for something: errAsked.
func (p *passive) run() error {
	for {
		n, err := p.receive()
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		switch p.step.Role {
		case echo:
			p.note(n)
			err = p.answer()
		case gather:
			p.note(n)
			if p.pending >= p.step.Batch {
				p.pending -= p.step.Batch
				if err = p.answer(); err == nil {
					err = p.ctl.send(answer{})
				}
			}
		default:
			err = p.consume(n)
		}
		if err != nil {
			return err
		}
	}
}

// note books what the streams of n completions owe.
func (p *passive) note(n int) {
	for i := range p.done[:n] {
		l := p.done[i].VI.Context.(*viStream)
		if p.done[i].Recv {
			l.owed++
			p.pending++
		}
		if l.owed > 0 && !l.touched {
			l.touched = true
			p.touched = append(p.touched, l)
		}
	}
}

// answer sends what is owed, as far as there are descriptors; a send that
// completes brings the stream back. The receives are posted again behind the
// answers: there are more of them than messages in flight.
func (p *passive) answer() error {
	for _, l := range p.touched {
		l.touched = false
		for ; l.owed > 0 && !l.full(); l.owed-- {
			if err := l.stage(); err != nil {
				return err
			}
		}
		l.vi.Doorbell()
	}
	for _, l := range p.touched {
		if err := l.repost(); err != nil {
			return err
		}
	}
	p.touched = p.touched[:0]
	return nil
}

// consume posts the receives again and then says so: when half of a stream's
// are back, or when a message asks.
func (p *passive) consume(n int) error {
	credited := p.st.level != via.UnreliableDelivery
	for i := range p.done[:n] {
		e := &p.done[i]
		l := e.VI.Context.(*viStream)
		if e.Recv {
			l.owed++
			l.asked = l.asked || e.Status&via.StatusImmediate != 0
			if err := l.repost(); err != nil {
				return err
			}
		}
		if !credited || l.owed == 0 || l.full() || !l.asked && l.owed < (len(l.in)+1)/2 {
			continue
		}
		d := l.next()
		d.SetImmediate(uint32(l.owed))
		l.owed, l.asked = 0, false
		if err := l.vi.PostSend(d); err != nil {
			return err
		}
	}
	return nil
}
