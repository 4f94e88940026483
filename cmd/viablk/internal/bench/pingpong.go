package bench

import "time"

// pingPong measures round trips, and those of bare eventfds beside them if both
// ends sleep and there is no network to compare with.
func (s *session) pingPong(x Case, round int) (sample, error) {
	out := sample{ops: s.cfg.ops(x)}
	var err error
	bare := func() {
		if err == nil && x.Wait == Sleep && s.eventfds != nil {
			out.baseline, err = s.bareRoundTrips(out.ops)
		}
	}
	if round%2 == 1 {
		bare()
	}
	if err == nil {
		err = s.roundTrips(x, &out)
	}
	if round%2 == 0 {
		bare()
	}
	return out, err
}

// roundTrips measures the round trips of a case.
func (s *session) roundTrips(x Case, out *sample) error {
	sh := shape{VIs: x.VIs, Sends: pings, Receives: pings, SendSize: x.Size, ReceiveSize: x.Size}
	st := step{Role: echo, Size: x.Size, Receives: pings}
	return s.with(st, sh, x.Wait, func(c *circuit) error {
		if err := c.pingPong(s.samples(warm(x, out.ops))); err != nil {
			return err
		}
		latency := s.samples(out.ops)
		var err error
		out.counters, err = s.count(c, out.ops, func() error { return c.pingPong(latency) })
		out.latency = distribute(latency, 0.5)
		out.time = out.latency.P50
		return err
	})
}

// bareRoundTrips returns the median time of one way between eventfds.
func (s *session) bareRoundTrips(ops int) (float64, error) {
	warmUp := min(ops, 1000)
	if _, err := s.ask(request{Step: &step{Role: bell, Count: warmUp + ops}}); err != nil {
		return 0, err
	}
	if err := pingEventfds(s.ctx, s.eventfds, s.cfg.Timeout, warmUp, s.samples(warmUp)); err != nil {
		return 0, err
	}
	latency := s.samples(ops)
	if err := pingEventfds(s.ctx, s.eventfds, s.cfg.Timeout, ops, latency); err != nil {
		return 0, err
	}
	return distribute(latency, 0.5).P50, nil
}

// samples returns room for n latencies; it is valid until the next call.
func (s *session) samples(n int) []int64 {
	if cap(s.latency) < n {
		s.latency = make([]int64, n)
	}
	return s.latency[:n]
}

// pingPong stores the time of each round trip, in nanoseconds; one reading of
// the clock is part of it. The receive that an answer consumed is posted again
// while the next message is on its way: there are others.
func (c *circuit) pingPong(latency []int64) error {
	streams := c.streams
	next, previous := 0, &streams[0]
	start := time.Now()
	var last time.Duration
	for i := range latency {
		l := &streams[next]
		if next++; next == len(streams) {
			next = 0
		}
		for l.full() {
			if _, err := c.receive(); err != nil {
				return err
			}
		}
		if err := l.vi.PostSend(l.next()); err != nil {
			return err
		}
		if err := previous.repost(); err != nil {
			return err
		}
		previous = l
		for want := c.got + 1; c.got < want; {
			if _, err := c.receive(); err != nil {
				return err
			}
		}
		now := time.Since(start)
		latency[i] = int64(now - last)
		last = now
	}
	return previous.repost()
}
