package bench

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// flow posts n operations on the VIs in rotation, with at most limit in flight,
// and takes their completions. Messages that need receives are done when the
// peer has posted these again.
func (c *circuit) flow(n, limit int, credited bool) error {
	streams, next := c.streams, 0
	flushFrom := n // operations from here on ask for credits: one of each stream
	if credited {
		flushFrom = max(0, n-len(streams))
	}
	posted, completed := 0, 0
	c.credited = 0
	for completed < n || credited && c.credited < n {
		first, from := posted, next
		for posted < n && posted-completed < limit && streams[next].credit > 0 && !streams[next].full() {
			l := &streams[next]
			if credited {
				l.credit--
			}
			var err error
			if posted < flushFrom {
				err = l.stage()
			} else {
				err = l.stageFlush()
			}
			if err != nil {
				return err
			}
			posted++
			if next++; next == len(streams) {
				next = 0
			}
		}
		c.ring(from, min(posted-first, len(streams)))
		before := c.sent
		if err := c.finish(); err != nil {
			return err
		}
		completed += c.sent - before
	}
	return nil
}

// ring rings the doorbells of n streams.
func (c *circuit) ring(from, n int) {
	for ; n > 0; n-- {
		c.streams[from].vi.Doorbell()
		if from++; from == len(c.streams) {
			from = 0
		}
	}
}

// finish takes what completed; what arrived are credits.
func (c *circuit) finish() error {
	n, err := c.receive()
	if err != nil {
		return err
	}
	for i := range c.done[:n] {
		e := &c.done[i]
		if !e.Recv {
			continue
		}
		l := e.VI.Context.(*viStream)
		granted := int(e.Immediate)
		if e.Status&via.StatusImmediate == 0 || granted > c.allowance-l.credit {
			return fmt.Errorf("%d credits on a VI that has %d: %w", granted, l.credit, errStale)
		}
		l.credit += granted
		c.credited += granted
		if err := l.repost(); err != nil {
			return err
		}
	}
	return nil
}

// allow gives each stream credit for the receives that the peer has posted.
func (c *circuit) allow(receives int) {
	c.allowance = receives
	for i := range c.streams {
		c.streams[i].credit = receives
	}
}

// window measures messages one way.
func (s *session) window(x Case) (sample, error) {
	out := sample{ops: s.cfg.ops(x)}
	sends := depth(x, s.st.buffers(x.Size, window))
	credited := s.cfg.Level != via.UnreliableDelivery
	sh := shape{VIs: x.VIs, Sends: sends, SendSize: x.Size, Receives: credits}
	st := step{Role: consume, Size: x.Size, Receives: 2 * sends}
	err := s.with(st, sh, x.Wait, func(c *circuit) error {
		if credited {
			c.allow(st.Receives)
		}
		limit := sends * x.VIs
		if err := c.flow(warm(x, out.ops), limit, credited); err != nil {
			return err
		}
		before, err := s.arrived(credited)
		if err != nil {
			return err
		}
		var elapsed time.Duration
		out.counters, err = s.count(c, out.ops, func() error {
			start := time.Now()
			err := c.flow(out.ops, limit, credited)
			elapsed = time.Since(start)
			return err
		})
		if err != nil {
			return err
		}
		after, err := s.arrived(credited)
		out.arrived = 1
		if !credited {
			out.arrived = float64(after-before) / float64(out.ops)
		}
		out.time = perOp(elapsed, out.ops) / max(out.arrived, 1/float64(out.ops))
		return err
	})
	return out, err
}

// arrived asks the peer how many messages arrived, where that may be fewer than
// were sent.
func (s *session) arrived(credited bool) (int, error) {
	if credited {
		return 0, nil
	}
	a, err := s.ask(request{Count: true})
	return a.Received, err
}
