package bench

import (
	"time"

	"github.com/viablk/viablk/via"
)

// pollScale measures what a completion costs to poll. A batch of messages goes
// out, each on the next VI; the peer answers them all, and then says so on the
// control connection. Only now the queue is polled, until it has given the
// completions of all sends and receives. The benchmark reads its own state of
// each VI when the time has been taken.
func (s *session) pollScale(x Case) (sample, error) {
	out := sample{ops: s.cfg.ops(x), arrived: 1}
	each := depth(x, 2*x.Batch)
	sh := shape{VIs: x.VIs, Sends: each, Receives: each, SendSize: x.Size, ReceiveSize: x.Size}
	st := step{Role: gather, Size: x.Size, Receives: each, Batch: x.Batch}
	err := s.with(st, sh, x.Wait, func(c *circuit) error {
		batches := max(1, out.ops/x.Batch)
		out.ops = 2 * batches * x.Batch // completions
		if _, err := s.polls(c, x.Batch, max(2, min(batches, 2*x.VIs/x.Batch))); err != nil {
			return err
		}
		var polling time.Duration
		var err error
		out.counters, err = s.count(c, out.ops, func() error {
			polling, err = s.polls(c, x.Batch, batches)
			return err
		})
		out.time = perOp(polling, out.ops)
		return err
	})
	return out, err
}

// polls returns the time of the polls that take the completions of batches.
func (s *session) polls(c *circuit, size, batches int) (time.Duration, error) {
	streams, next := c.streams, 0
	var polling time.Duration
	done := make([]via.Completion, 2*size)
	for range batches {
		from := next
		for range size {
			if err := streams[next].stage(); err != nil {
				return 0, err
			}
			if next++; next == len(streams) {
				next = 0
			}
		}
		c.ring(from, min(size, len(streams)))
		if _, err := s.answer(); err != nil {
			return 0, err
		}
		start := time.Now()
		for n := 0; n < len(done); {
			k, err := c.poll(done[n:])
			if err != nil {
				return 0, err
			}
			n += k
		}
		polling += time.Since(start)
		if err := c.book(done); err != nil {
			return 0, err
		}
		for i := range min(size, len(streams)) {
			if err := streams[(from+i)%len(streams)].repost(); err != nil {
				return 0, err
			}
		}
	}
	return polling, nil
}
