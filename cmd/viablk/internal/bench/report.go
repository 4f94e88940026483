package bench

import (
	"github.com/viablk/viablk/via"
)

// Report is the result of a run.
type Report struct {
	Conditions Conditions  `json:"conditions"`
	Rows       []Row       `json:"rows"`
	Published  []Published `json:"published"`
}

// Row is the result of a case. Times are nanoseconds.
type Row struct {
	Case
	Rounds int `json:"rounds"`
	Ops    int `json:"ops"` // operations of a round

	// Time is of one operation: the median one way of a ping-pong, a message,
	// an RDMA operation, a post with the poll of its completion, the poll of
	// one completion.
	Time Spread  `json:"time_ns"`
	Rate float64 `json:"per_second"`    // operations
	MBps float64 `json:"mb_per_second"` // 10⁶ bytes of payload a second

	Latency  *Distribution `json:"latency,omitempty"`  // ping-pong, one way
	Post     *Spread       `json:"post_ns,omitempty"`  // post-rate: of Time, the post alone
	Arrived  *Spread       `json:"arrived,omitempty"`  // share of messages, where they may be lost
	Baseline *Baseline     `json:"baseline,omitempty"` // measured in the same rounds
	Samples  []Sample      `json:"samples"`            // of the rounds, in order
	PerOp    *Counters     `json:"per_op,omitempty"`   // of the measuring end
}

// Sample is a row's figures in one round, in nanoseconds of one operation.
type Sample struct {
	Time     float64 `json:"time_ns"`
	Baseline float64 `json:"baseline_ns,omitempty"`
	Post     float64 `json:"post_ns,omitempty"`
	P99      float64 `json:"p99_ns,omitempty"`
}

// Baseline is what a row is compared with.
type Baseline struct {
	Name  string `json:"name"`    // copy, eventfd, udp, tcp or "1 VI"
	Time  Spread `json:"time_ns"` // of one operation
	Ratio Spread `json:"ratio"`   // the row's time to it, within a round
}

// Counters count what the measuring end did for one operation, except for
// AgentCalls, which is of a whole measurement, the most of all rounds, and CPU,
// which is what both ends used.
type Counters struct {
	Allocations float64 `json:"allocations"`
	AgentCalls  uint64  `json:"agent_calls"` // to the kernel agent
	CPU         float64 `json:"cpu_ns"`      // processor time of both ends' processes
	Sends       float64 `json:"sends"`       // messages
	Receives    float64 `json:"receives"`    // messages
	Rdma        float64 `json:"rdma"`        // operations
	Records     float64 `json:"records"`     // writes to the ring; packets of a network
	Wakes       float64 `json:"wakes"`       // system calls that wake the peer
	Copied      float64 `json:"copied"`      // bytes moved by the processor
	Stalls      float64 `json:"stalls"`      // times the fabric had no room
	Dropped     float64 `json:"dropped"`     // messages, at the unreliable level

	// Packets that one system call of the measuring end sent, and received; 0
	// where no counter exists.
	PacketsPerSend    float64 `json:"packets_per_send,omitempty"`
	PacketsPerReceive float64 `json:"packets_per_receive,omitempty"`
}

// newReport makes rows of samples.
func newReport(cfg Config, nic *via.NIC, samples map[Case][]sample) *Report {
	r := &Report{Conditions: here(cfg, nic), Published: Papers()}
	for _, x := range cfg.cases() {
		if len(samples[x]) > 0 {
			r.Rows = append(r.Rows, newRow(x, samples))
		}
	}
	return r
}

// newRow makes a row of the samples of a case; those of another case may be its
// baseline.
func newRow(x Case, samples map[Case][]sample) Row {
	private := samples[x]
	times := each(private, func(s *sample) float64 { return s.time })
	row := Row{Case: x, Rounds: len(private), Ops: private[0].ops, Time: spread(times)}
	if t := row.Time.Median; t > 0 {
		row.Rate = 1e9 / t
		row.MBps = float64(x.Size) * 1e3 / t
	}
	row.PerOp = perOperation(private)
	baselines, name := each(private, func(s *sample) float64 { return s.baseline }), "copy"
	switch x.Mode {
	case PingPong, UDP:
		var d []Distribution
		for i := range private {
			d = append(d, private[i].latency)
		}
		merged := merge(d)
		row.Latency, name = &merged, "eventfd"
	case Window:
		arrived := spread(each(private, func(s *sample) float64 { return s.arrived }))
		row.Arrived = &arrived
	case PostRate, PollScale:
		one := x
		one.VIs = 1
		if other := samples[one]; x.VIs > 1 && len(other) == len(private) {
			baselines, name = each(other, func(s *sample) float64 { return s.time }), "1 VI"
		}
	}
	if y, ok := x.yardstick(); ok && len(samples[y]) == len(private) {
		bytes := 1.0
		if y.Mode == TCP {
			bytes = float64(x.Size) / float64(y.Size) // its time of as many
		}
		baselines, name = each(samples[y], func(s *sample) float64 { return s.time * bytes }), string(y.Mode)
	}
	switch x.Mode {
	case PostRate:
		post := spread(each(private, func(s *sample) float64 { return s.post }))
		row.Post = &post
	case PollScale:
		row.PerOp = nil // the control connection is used meanwhile
		row.MBps = 0
	}
	row.Baseline = newBaseline(name, times, baselines)
	for i := range private {
		row.Samples = append(row.Samples, Sample{private[i].time, baselines[i], private[i].post, private[i].latency.P99})
	}
	return row
}

// newBaseline compares times round by round; nil if there is nothing to compare
// with.
func newBaseline(name string, times, baselines []float64) *Baseline {
	var ratios []float64
	for i, b := range baselines {
		if b <= 0 {
			return nil
		}
		ratios = append(ratios, times[i]/b)
	}
	return &Baseline{Name: name, Time: spread(baselines), Ratio: spread(ratios)}
}

// each returns a figure of each round.
func each(rounds []sample, figure func(*sample) float64) []float64 {
	var v []float64
	for i := range rounds {
		v = append(v, figure(&rounds[i]))
	}
	return v
}

// perOperation merges the counters of the rounds.
func perOperation(rounds []sample) *Counters {
	of := func(figure func(*Counters) float64) float64 {
		return median(each(rounds, func(s *sample) float64 { return figure(&s.counters) }))
	}
	c := &Counters{
		Allocations: of(func(c *Counters) float64 { return c.Allocations }),
		Sends:       of(func(c *Counters) float64 { return c.Sends }),
		Receives:    of(func(c *Counters) float64 { return c.Receives }),
		Rdma:        of(func(c *Counters) float64 { return c.Rdma }),
		Records:     of(func(c *Counters) float64 { return c.Records }),
		Wakes:       of(func(c *Counters) float64 { return c.Wakes }),
		Copied:      of(func(c *Counters) float64 { return c.Copied }),
		Stalls:      of(func(c *Counters) float64 { return c.Stalls }),
		Dropped:     of(func(c *Counters) float64 { return c.Dropped }),
		CPU:         of(func(c *Counters) float64 { return c.CPU }),

		PacketsPerSend:    of(func(c *Counters) float64 { return c.PacketsPerSend }),
		PacketsPerReceive: of(func(c *Counters) float64 { return c.PacketsPerReceive }),
	}
	for i := range rounds {
		c.AgentCalls = max(c.AgentCalls, rounds[i].counters.AgentCalls)
	}
	return c
}
