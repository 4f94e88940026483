package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via"
)

// The discriminators of the passive end.
const (
	controlName = "viablk-bench"
	dataName    = "viablk-bench-data"
)

// connectTimeout is how long a connection may take.
const connectTimeout = 10 * time.Second

// maximumArea bounds what a measuring end may ask a passive end to map.
const maximumArea = 4 * MaximumSize

// Server is the passive end at an address.
type Server struct {
	nic       *via.NIC
	ctl, data *via.Listener

	// Eventfds, if not nil, are shared with the measuring end, for the control
	// of the sleeping round trip.
	Eventfds *Eventfds

	// Processor, if not nil, is where the end runs.
	Processor *int

	// Network, if valid, is where yardsticks are measured: an address of this
	// end, which may be a wildcard.
	Network netip.Addr
}

// Listen starts to accept connections at a host address of the provider.
func Listen(nic *via.NIC, host string) (*Server, error) {
	ctl, err := nic.Listen(via.Address{Host: host, Discriminator: controlName})
	if err != nil {
		return nil, err
	}
	data, err := nic.Listen(via.Address{Host: host, Discriminator: dataName})
	if err != nil {
		return nil, errors.Join(err, ctl.Close())
	}
	return &Server{nic: nic, ctl: ctl, data: data}, nil
}

// Close stops to accept connections.
func (s *Server) Close() error { return errors.Join(s.data.Close(), s.ctl.Close()) }

// Serve waits for a measuring end and does what it says, until it disconnects
// or ctx ends. Others wait meanwhile.
func (s *Server) Serve(ctx context.Context) error {
	release, err := bind(s.Processor)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.ctl.Wait(ctx)
	if err != nil {
		return err
	}
	ctl, err := openControl(s.nic)
	if err != nil {
		return errors.Join(err, r.Reject())
	}
	accepting, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	if err := r.Accept(accepting, ctl.vi); err != nil {
		return errors.Join(err, ctl.close())
	}
	v := visit{Server: s, ctx: ctx, ctl: ctl}
	err = v.run()
	return errors.Join(err, v.close())
}

// visit is one measuring end at a server.
type visit struct {
	*Server
	ctx context.Context // of the Serve that runs it
	ctl *control
	st  *station
}

func (v *visit) close() error {
	var err error
	if v.st != nil {
		err = v.st.close()
	}
	return errors.Join(err, v.ctl.close())
}

// run answers requests until the measuring end disconnects.
func (v *visit) run() error {
	for {
		var r request
		if err := v.ctl.receive(v.ctx, 0, &r); err != nil {
			if errors.Is(err, ErrLost) {
				return nil
			}
			return err
		}
		if err := v.request(&r); err != nil {
			_ = v.ctl.send(answer{Error: err.Error()}) // the measuring end may be gone
			return err
		}
	}
}

func (v *visit) request(r *request) error {
	switch {
	case r.Hello != nil:
		return v.hello(r.Hello)
	case r.Step != nil && v.st != nil:
		if err := r.Step.check(v.st.area); err != nil {
			return err
		}
		switch r.Step.Role {
		case bell:
			return v.bells(r.Step)
		case datagrams, stream:
			return v.yardstick(r.Step)
		default:
			return v.step(r.Step)
		}
	default:
		return errors.New("a request out of turn")
	}
}

// hello maps the memory that the measuring end needs, and names it.
func (v *visit) hello(h *hello) error {
	if h.Version != protocolVersion {
		return fmt.Errorf("the ends speak versions %d and %d: use the same viablk on both", h.Version, protocolVersion)
	}
	if v.st != nil || h.Area < bufferAlign || h.Area > maximumArea {
		return fmt.Errorf("an area of %d bytes is not within the limits, or the second one", h.Area)
	}
	st, err := openStation(v.nic, h.Level, h.Area)
	if err != nil {
		return err
	}
	v.st = st
	return v.ctl.send(answer{
		Addr: st.mem.Addr() + uint64(st.area), Handle: st.mem.Handle(), Bells: v.Eventfds != nil, Network: v.Network.IsValid(),
	})
}

// bells answers the eventfds.
func (v *visit) bells(s *step) error {
	if v.Eventfds == nil {
		return errors.New("there are no eventfds between these ends")
	}
	if err := v.ctl.send(answer{}); err != nil {
		return err
	}
	return echoEventfds(v.ctx, v.Eventfds, connectTimeout, s.Count)
}

// step makes a circuit, accepts the connections of the other end's, and serves
// them until it is told to stop.
func (v *visit) step(s *step) (err error) {
	c, err := openCircuit(v.st, s.shape())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := v.ctl.send(answer{}); err != nil {
		return err
	}
	for i := range c.streams {
		if err := v.accept(c.streams[i].vi); err != nil {
			return err
		}
	}
	if err := v.ctl.send(answer{}); err != nil {
		return err
	}
	p := &passive{circuit: c, step: *s, ctl: v.ctl, touched: make([]*viStream, 0, len(c.done)*2)}
	c.waitAs(v.ctx, s.Wait, s.Spin, 0, v.ctl)
	return v.untilStop(p.run, func() int { return c.got })
}

// accept connects a VI to the next that asks.
func (v *visit) accept(vi *via.VI) error {
	ctx, stop := context.WithTimeout(v.ctx, connectTimeout)
	defer stop()
	r, err := v.data.Wait(ctx)
	if err != nil {
		return err
	}
	return r.Accept(ctx, vi)
}
