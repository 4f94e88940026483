package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

const (
	window     = 64 // messages in flight at most
	rdmaWindow = 16 // RDMA operations in flight at most
	batch      = 64 // posts to a doorbell, completions to a poll
	credits    = 4  // credit messages in flight on a VI at most
	// descriptors of a ping-pong: one works, the others are posted beside it
	pings = 4

	// minimumArea is the least size of an area: more than a cache holds.
	minimumArea = 16 << 20

	// warmBytes is at least what warms up: rings and buffers are touched by
	// then.
	warmBytes = 512 << 10
)

// errStale says that the peer answered what was not asked.
var errStale = errors.New("the peer breaks the protocol of the benchmark")

// Run measures against the server at a host address of the provider. eventfds
// may be nil; otherwise the server has their other ends.
func Run(ctx context.Context, nic *via.NIC, host string, eventfds *Eventfds, config Config) (*Report, error) {
	cfg, err := config.complete(nic)
	if err != nil {
		return nil, err
	}
	release, err := bind(cfg.Processor)
	if err != nil {
		return nil, err
	}
	defer release()
	before := load()
	s := &session{ctx: ctx, cfg: cfg, nic: nic, host: host, eventfds: eventfds}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	samples, err := s.rounds()
	switch {
	case err != nil && ctx.Err() != nil: // whatever step its end met
		err = errors.Join(context.Cause(ctx), err)
	case errors.Is(err, ErrLost):
		err = s.reason(err)
	}
	err = errors.Join(err, s.close())
	if len(samples) == 0 || err != nil && ctx.Err() == nil {
		return nil, err
	}
	cfg.Rounds = 0
	for _, list := range samples {
		cfg.Rounds = max(cfg.Rounds, len(list))
	}
	r := newReport(cfg, nic, samples)
	r.Conditions.Load = before
	return r, err
}

// session is the measuring end of a connection to a server.
type session struct {
	ctx      context.Context // of the Run
	cfg      Config
	nic      *via.NIC
	host     string
	eventfds *Eventfds

	ctl     *control
	st      *station
	peer    answer  // to the hello
	latency []int64 // room for the latencies of a case
}

// open connects and maps the memory of both ends.
func (s *session) open() error {
	var err error
	if s.ctl, err = openControl(s.nic); err != nil {
		return err
	}
	if err = s.dial(s.ctl.vi, controlName); err != nil {
		return err
	}
	area := max(minimumArea, 2*bufferSize(slices.Max(s.cfg.Sizes)))
	if s.st, err = openStation(s.nic, s.cfg.Level, area); err != nil {
		return err
	}
	s.peer, err = s.ask(request{Hello: &hello{Version: protocolVersion, Area: area, Level: s.cfg.Level}})
	if !s.peer.Bells || slices.Contains(s.cfg.Modes, UDP) {
		s.eventfds = nil // one control for all
	}
	if err == nil && !s.peer.Network && slices.ContainsFunc(s.cfg.Modes, Mode.isYardstick) {
		err = errNoNetwork
	}
	return err
}

func (s *session) close() error {
	var err error
	if s.st != nil {
		err = s.st.close()
	}
	if s.ctl != nil {
		err = errors.Join(err, s.ctl.close())
	}
	return err
}

// dial connects a VI to the server.
func (s *session) dial(vi *via.VI, name string) error {
	ctx, stop := context.WithTimeout(s.ctx, connectTimeout)
	defer stop()
	_, err := vi.Connect(ctx, via.Address{Host: s.host, Discriminator: name})
	return err
}

// ask sends a request and returns its answer.
func (s *session) ask(r request) (answer, error) {
	if err := s.ctl.send(r); err != nil {
		return answer{}, err
	}
	return s.answer()
}

// answer waits for an answer.
func (s *session) answer() (answer, error) {
	var a answer
	if err := s.ctl.receive(s.ctx, s.cfg.Timeout, &a); err != nil {
		return answer{}, err
	}
	if a.Error != "" {
		return answer{}, fmt.Errorf("the peer: %s", a.Error)
	}
	return a, nil
}

// reason returns why the peer ended, if it said so before.
func (s *session) reason(lost error) error {
	s.ctl.poll() // it has what came before the end
	if len(s.ctl.inbox) == 0 {
		return lost
	}
	if _, err := s.answer(); err != nil {
		return err
	}
	return lost
}

// rounds measures every case once in each round. With an error it returns the
// samples of complete rounds; in the first round, those of its cases.
func (s *session) rounds() (map[Case][]sample, error) {
	cases := s.cfg.cases()
	samples := make(map[Case][]sample)
	for round := range s.cfg.Rounds {
		for i, x := range cases {
			if s.cfg.Progress != nil {
				s.cfg.Progress(round*len(cases)+i, s.cfg.Rounds*len(cases), x)
			}
			one, err := s.measure(x, round)
			if err != nil {
				for _, done := range cases[:i] {
					samples[done] = samples[done][:max(round, 1)]
				}
				return samples, fmt.Errorf("%v: %w", x, err)
			}
			samples[x] = append(samples[x], one)
		}
	}
	return samples, nil
}

// sample is one case in one round. Times are nanoseconds per operation.
type sample struct {
	ops      int
	time     float64
	latency  Distribution
	baseline float64 // what it is compared with; 0 is nothing
	post     float64 // post-rate: of time, until the doorbell has returned
	arrived  float64 // share of messages
	counters Counters
}

// measure measures a case in one round.
func (s *session) measure(x Case, round int) (sample, error) {
	switch x.Mode {
	case PingPong:
		return s.pingPong(x, round)
	case Window:
		return s.window(x)
	case PostRate:
		return s.postRate(x)
	case PollScale:
		return s.pollScale(x)
	case UDP:
		return s.udp(x)
	case TCP:
		return s.tcp(x)
	default:
		return s.rdma(x, round)
	}
}

// depth returns how many descriptors each of the VIs of a case needs for n of
// them in all.
func depth(x Case, n int) int { return max(2, (n+x.VIs-1)/x.VIs) }

// warm returns how many operations warm a case up.
func warm(x Case, ops int) int {
	return max(2*window, min(ops, warmBytes/(x.Size+descriptorSize)))
}

// with connects a circuit to one of the server's, runs measure and stops it.
func (s *session) with(st step, sh shape, wait Wait, measure func(*circuit) error) (err error) {
	st.VIs, st.Wait, st.Spin = sh.VIs, wait, s.cfg.Spin
	if _, err := s.ask(request{Step: &st}); err != nil {
		return err
	}
	c, err := openCircuit(s.st, sh)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for i := range c.streams {
		if err := s.dial(c.streams[i].vi, dataName); err != nil {
			return err
		}
	}
	if _, err := s.answer(); err != nil {
		return err
	}
	c.waitAs(s.ctx, wait, s.cfg.Spin, s.cfg.Timeout, nil)
	if err := measure(c); err != nil {
		return err
	}
	_, err = s.ask(request{Stop: true})
	return err
}

// count counts what f does, per operation. It runs within a step.
func (s *session) count(c *circuit, ops int, f func() error) (Counters, error) {
	var before, after runtime.MemStats
	used, err := s.usage()
	if err != nil {
		return Counters{}, err
	}
	agent, links, packets := agentCalls(s.nic), c.stats(), s.packets()
	runtime.ReadMemStats(&before)
	if err := f(); err != nil {
		return Counters{}, err
	}
	runtime.ReadMemStats(&after)
	now, calls, n := c.stats(), agentCalls(s.nic)-agent, float64(ops)
	perSend, perReceive := s.packets().since(packets)
	usedNow, err := s.usage()
	if err != nil {
		return Counters{}, err
	}
	return Counters{
		Allocations: float64(after.Mallocs-before.Mallocs) / n,
		AgentCalls:  calls,
		CPU:         float64(usedNow-used) / n,
		Sends:       float64(now.Sends-links.Sends) / n,
		Receives:    float64(now.Receives-links.Receives) / n,
		Rdma:        float64(now.RdmaWrites+now.RdmaReads-links.RdmaWrites-links.RdmaReads) / n,
		Records:     float64(now.Records-links.Records) / n,
		Wakes:       float64(now.Doorbells-links.Doorbells) / n,
		Copied:      float64(now.BytesCopied-links.BytesCopied) / n,
		Stalls:      float64(now.Stalls-links.Stalls) / n,
		Dropped:     float64(now.Dropped-links.Dropped) / n,

		PacketsPerSend: perSend, PacketsPerReceive: perReceive,
	}, nil
}

// packets returns what the provider counts, or nothing.
func (s *session) packets() Packets {
	if s.cfg.Packets == nil {
		return Packets{}
	}
	return s.cfg.Packets()
}

// agentCalls returns how many calls went to the kernel agent so far.
func agentCalls(nic *via.NIC) uint64 { return nic.Agent().Calls() }

// perOp returns nanoseconds per operation.
func perOp(d time.Duration, ops int) float64 { return float64(d) / float64(ops) }
