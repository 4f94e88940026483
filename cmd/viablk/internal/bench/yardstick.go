package bench

import (
	"errors"
	"slices"
)

// The yardsticks are what the network between the ends can do without VIA:
// round trips of UDP datagrams, with the same waiting, and a stream of TCP.
// They are modes like others, and what the figures of VIA are compared with.

// errNoNetwork says that there is nothing to measure a yardstick on.
var errNoNetwork = errors.New("an end has no address at which to measure the network")

// isYardstick reports whether a mode measures the network.
func (m Mode) isYardstick() bool { return m == UDP || m == TCP }

// yardstick returns the case that a case of VIA is compared with: the round
// trip of a datagram of the same size, or the stream.
func (c Case) yardstick() (Case, bool) {
	switch {
	case c.Mode == PingPong && c.Size <= MaximumDatagram:
		return Case{Mode: UDP, Size: c.Size, Wait: c.Wait, VIs: 1}, true
	case c.Mode == RdmaWrite || c.Mode == RdmaRead:
		return streamCase, true
	}
	return Case{}, false
}

// compares reports whether the yardstick of a case is measured, too.
func (c Config) compares(x Case) bool {
	y, ok := x.yardstick()
	return ok && slices.Contains(c.Modes, y.Mode)
}

// yardstick does a step on the network.
func (v *visit) yardstick(s *step) error {
	switch {
	case !v.Network.IsValid():
		return errNoNetwork
	case s.Role == datagrams:
		return v.echoDatagrams(s)
	default:
		return v.receiveStream()
	}
}

// untilStop runs a step, and answers requests, until it is to stop. run returns
// errAsked when one waits.
func (v *visit) untilStop(run func() error, received func() int) error {
	for {
		if err := run(); !errors.Is(err, errAsked) {
			return err
		}
		var r request
		if err := v.ctl.receive(v.ctx, 0, &r); err != nil {
			return err
		}
		if !r.Count && !r.Stop {
			return errors.New("a request out of turn")
		}
		a := answer{Received: received(), Process: process, CPU: processorTime()}
		if err := v.ctl.send(a); err != nil || r.Stop {
			return err
		}
	}
}
