package bench

import (
	"time"

	"github.com/viablk/viablk/via"
)

// rounds is how often RDMA and copies take turns within a round.
const rounds = 8

// rdma measures RDMA operations, and copies of the same size beside them if
// there is no network to compare with.
func (s *session) rdma(x Case, round int) (sample, error) {
	out := sample{ops: s.cfg.ops(x), arrived: 1}
	op := via.OpRdmaWrite
	if x.Mode == RdmaRead {
		op = via.OpRdmaRead
	}
	sends := depth(x, s.st.buffers(x.Size, rdmaWindow))
	sh := shape{
		VIs: x.VIs, Sends: sends, Receives: 1, SendSize: x.Size,
		Op: op, RemoteAddr: s.peer.Addr, RemoteHandle: s.peer.Handle,
	}
	err := s.with(step{Role: consume, Receives: 1}, sh, x.Wait, func(c *circuit) error {
		limit, warmUp := sends*x.VIs, warm(x, out.ops)
		if err := c.flow(warmUp, limit, false); err != nil {
			return err
		}
		beside := !s.cfg.compares(x)
		if beside {
			s.st.copies(x, limit, warmUp)
		}
		var moving, copying time.Duration
		var err error
		each := (out.ops + rounds - 1) / rounds
		out.ops = each * rounds
		out.counters, err = s.count(c, out.ops, func() error {
			for position := range rounds {
				if beside && position%2 == round%2 {
					copying += s.st.copies(x, limit, each)
				}
				start := time.Now()
				if err := c.flow(each, limit, false); err != nil {
					return err
				}
				moving += time.Since(start)
				if beside && position%2 != round%2 {
					copying += s.st.copies(x, limit, each)
				}
			}
			return nil
		})
		out.time, out.baseline = perOp(moving, out.ops), perOp(copying, out.ops)
		return err
	})
	return out, err
}

// copies returns the time of n copies between the buffers of this end that
// correspond to those of RDMA: as many, as far apart, in the same order.
func (s *station) copies(x Case, limit, n int) time.Duration {
	from, to := s.out(), s.in()
	if x.Mode == RdmaRead {
		from, to = to, from
	}
	count, buffer := s.buffers(x.Size, limit), bufferSize(x.Size)
	k := 0
	start := time.Now()
	for range n {
		copy(to[k*buffer:k*buffer+x.Size], from[k*buffer:k*buffer+x.Size])
		if k++; k == count {
			k = 0
		}
	}
	return time.Since(start)
}
