package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/netns"
	"github.com/viablk/viablk/via"
)

// benchHelp says what each mode measures.
const benchHelp = `Measure VIA between two ends: this process and a second one that it starts, or
with --one-process two threads of this one. Between hosts, "--listen URI" is the
other end, and "bench via URI" measures against it.

Modes:
  pingpong    A message goes to the peer, which answers with one of the same size
              as soon as it has it. The latency is half of such a round trip,
              with one reading of the clock in it. Both ends have receives posted
              before the message comes, and post them again while the other end
              works; the payload is neither written nor read by the ends. With
              --wait sleep, bare eventfds between the same two processes, woken
              and waited for in the same way, alternate with it.
  window      Messages go one way, at most 64 in flight. The peer takes them,
              posts the receives again, and says so by a credit message for every
              half of them: VIA itself has no flow control. Time ends when the
              last message was taken and credited. At the unreliable level there
              are no credits; what counts is what arrived.
  rdma-write  RDMA Writes to the peer's memory, at most 16 in flight; the time of
  rdma-read   one is the whole loop of post, doorbell and poll divided by their
              number. In the same process, alternately, copy() moves as much between
              buffers of the same kind, number, distance and order; the ratio is
              the time of the operation to that of the copy. Registration and
              connecting are not part of it.
  post-rate   64-byte sends in batches of 64 with one doorbell, on one VI and on
              many. The time is that of the posting thread: the posts with their
              doorbell (POST), and the polls that take their completions. Waiting
              for the receiver is not part of it.
  pollscale   64-byte messages, each on another VI of a completion queue, go out,
              and all are answered. Once all answers are there the queue is
              polled; the time is that of the polls, divided by the completions of
              sends and receives they return. Batches are of 1 and of 64 messages;
              many VIs are compared with one.
  udp         Without VIA: UDP datagrams to the peer, which answers as in pingpong,
              waiting in the same way; up to 1232 bytes, which no network fragments.
  tcp         Without VIA: a TCP stream from a goroutine that writes 64 KiB at a time
              to one that reads as much; they wait as Go's network poller does.

Between ends with a network, udp and tcp belong to the default modes, and pingpong
and RDMA are compared with them in place of eventfds and copies. --veth MTU makes
such a network: two namespaces with a veth pair, which nothing else uses, each
with one of the ends.

Each end runs on a processor of its own, if there are two: the system would put
both on one at times, where wake-ups cost less and everything else more. --float
leaves it to the system.

Waiting: poll polls the queue without end; spin polls for --busy-poll and then
sleeps; sleep arms the queue and sleeps in ppoll at once. Both ends wait alike.
post-rate and pollscale always poll.

Every case has new connections, is warmed up, and is measured once in each round;
what it is compared with alternates with it in the same round. The figures are
medians over the rounds, with the least and the most where they are shown. Counts
are those of the measuring end for one operation; AGENT are calls to the kernel
agent during the measurement, PKTS/SEND and PKTS/RECV the packets that share a
system call.

A round of a case has 10,000 round trips or polls for completions, 20,000 messages
or RDMA operations, or 200,000 posts, but moves no more than 128 MiB; where an end
may sleep, a quarter of that. It never has less than 1,000 round trips, 2,000
messages, 500 RDMA operations, 2,000 posts or 1,000 polls, up to 64 KiB; of longer
messages all rounds together have as many. --quick has these least numbers, --count
another one for all.

-o json prints everything, -o benchfmt the lines of Go benchmarks, one for each row
and round, for benchstat.

The figures of papers are printed, and drawn, with their conditions. They are of
other machines, and of networks.`

// benchOptions are the flags of "viablk bench via".
type benchOptions struct {
	modes, sizes, waits []string
	level               string
	provider            string
	listen              string
	oneProcess, quick   bool
	float               bool
	offloads            string
	noOffloads          bool
	chart, chartFormat  string
	veth                int // MTU of a network of its own; 0 for none
	far                 int // file descriptor of the other end's namespace; -1 for none
	config              bench.Config
	other               *int // processor of the other end
}

// bind gives each end a processor of its own: the measuring end the first.
func (o *benchOptions) bind() error {
	all, err := bench.Processors()
	if err != nil || o.float || len(all) < 2 {
		return err
	}
	o.config.Processor, o.other = &all[0], &all[1]
	return nil
}

// levels are the reliability levels by the words of --reliability.
var levels = map[string]via.ReliabilityLevel{
	"unreliable": via.UnreliableDelivery,
	"delivery":   via.ReliableDelivery,
	"reception":  via.ReliableReception,
}

func (a *app) benchVIACommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "via [URI]",
		Short: "Benchmark VIA: latency, bandwidth, RDMA, posts and polls",
		Long:  benchHelp,
		Example: `  viablk bench via
  viablk bench via --mode pingpong --sizes 64 --wait poll,spin,sleep
  viablk bench via --mode rdma-write,rdma-read --sizes 4K,64K,1M --chart charts
  viablk bench via --quick -o benchfmt >new.txt && benchstat old.txt new.txt
  viablk bench via --provider shm --veth 4500 --mode udp,tcp
  viablk bench via --provider roce --veth 4500 --mode udp,pingpong --sizes 64 --wait poll,spin,sleep
  viablk bench via --listen 'via+shm:///?socket=/tmp/b.sock' &
  viablk bench via 'via+shm:///?socket=/tmp/b.sock'`,
		Annotations: map[string]string{moreOutputs: "benchfmt"},
	}
	var o benchOptions
	f := cmd.Flags()
	f.StringSliceVar(&o.modes, "mode", texts(bench.Modes()), "measure `MODE`: "+alternatives(allModes())+"; a list")
	f.StringSliceVar(&o.sizes, "sizes", defaultSizes(), "message `SIZES`, such as 64,4K,1M")
	f.StringSliceVar(&o.waits, "wait", texts(bench.Waits()), "wait for completions by `HOW`: "+alternatives(bench.Waits())+"; a list")
	f.StringVar(&o.level, "reliability", "delivery", "reliability `LEVEL`: unreliable, delivery or reception")
	f.StringVar(&o.provider, "provider", providers[0].Name(), "measure provider `NAME`: "+alternatives(providerNames()))
	f.StringVar(&o.offloads, "offloads", "auto", "have roce use segmentation and coalescing of the kernel: `WHAT`, auto or off")
	f.IntVar(&o.config.Rounds, "rounds", 5, "`NUMBER` of rounds")
	f.IntVar(&o.config.Ops, "count", 0, "`NUMBER` of operations of a case and round; 0: by mode, size and way to wait, see above")
	f.IntVar(&o.config.VIs, "vis", 1, "`NUMBER` of VIs, used in rotation, in pingpong, window and RDMA")
	f.IntVar(&o.config.Many, "many", bench.DefaultMany, "`NUMBER` of VIs in post-rate and pollscale")
	f.DurationVar(&o.config.Spin, "busy-poll", 0, "busy-poll for `TIME` with --wait spin before sleeping; 0: "+bench.DefaultSpin.String())
	f.DurationVar(&o.config.Timeout, "timeout", 0, "timeout, `TIME` without progress; 0: "+bench.DefaultTimeout.String())
	f.BoolVar(&o.oneProcess, "one-process", false, "run both ends in this process")
	f.BoolVar(&o.float, "float", false, "let the system choose the processors of both ends, and change them")
	f.BoolVar(&o.quick, "quick", false, "measure a few sizes for a moment, to see that all works")
	f.IntVar(&o.veth, "veth", 0, "measure over a network of its own, a veth pair with `MTU`; needs root")
	f.IntVar(&o.far, "far", -1, "run the peer in the network namespace of file descriptor `NUMBER`")
	_ = f.MarkHidden("far") // it is the command's own, for --veth
	f.StringVar(&o.listen, "listen", "", "be the other end at VIA `URI`, until SIGTERM")
	f.StringVar(&o.chart, "chart", "", "draw a chart of each mode in `FOLDER`")
	f.StringVar(&o.chartFormat, "chart-format", "svg", "draw as `FORMAT`: svg or png")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		network, err := o.network(args)
		if err != nil {
			return err
		}
		if err := o.complete(cmd, network); err != nil {
			return err
		}
		if o.veth != 0 && (o.listen != "" || len(args) > 0 || o.oneProcess) {
			return usage("--veth is a network between two processes of its own: it takes no URI, --listen or --one-process")
		}
		if err := o.bind(); err != nil {
			return err
		}
		if err := makeChartFolder(o.chart); err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		switch {
		case o.listen != "" && len(args) > 0:
			return usage("--listen is the other end, and takes no URI to measure against")
		case o.listen != "":
			return a.benchListen(ctx, &o)
		case len(args) > 0:
			return a.benchAgainst(ctx, &o, args[0])
		case o.veth != 0 && o.far < 0:
			return a.benchVeth(ctx, &o)
		default:
			return a.benchPair(ctx, &o)
		}
	}
	return cmd
}

// defaultSizes are 0 and the powers of two from 64 B to 4 MiB.
func defaultSizes() []string {
	sizes := []string{"0"}
	for n := 64; n <= 4<<20; n *= 2 {
		sizes = append(sizes, shortSize(n))
	}
	return sizes
}

// shortSize returns a size as --sizes takes it: 64, 4K, 1M.
func shortSize(n int) string {
	return strings.TrimSuffix(config.Size(n).String(), "iB")
}

// allModes returns the modes of VIA and those of the network.
func allModes() []bench.Mode { return slices.Concat(bench.Modes(), bench.Yardsticks()) }

// texts returns words as strings.
func texts[T ~string](list []T) []string {
	var s []string
	for _, w := range list {
		s = append(s, string(w))
	}
	return s
}

// choose returns the words of a list, each once and each one of those known.
func choose[T ~string](flag string, list []string, known []T) ([]T, error) {
	var chosen []T
	for _, w := range list {
		if !slices.Contains(known, T(w)) {
			return nil, usage("--%s %q: take some of %s", flag, w, strings.Join(texts(known), ", "))
		}
		if !slices.Contains(chosen, T(w)) {
			chosen = append(chosen, T(w))
		}
	}
	if len(chosen) == 0 {
		return nil, usage("--%s: take some of %s", flag, strings.Join(texts(known), ", "))
	}
	return chosen, nil
}

// complete turns the flags into a configuration; network says whether the ends
// have one between them.
func (o *benchOptions) complete(cmd *cobra.Command, network bool) error {
	given := cmd.Flags().Changed
	c := &o.config
	if o.quick {
		o.shorten(given)
	}
	var err error
	if network && !given("mode") {
		o.modes = append(o.modes, texts(bench.Yardsticks())...)
	}
	if c.Modes, err = choose("mode", o.modes, allModes()); err != nil {
		return err
	}
	if !network && slices.ContainsFunc(c.Modes, func(m bench.Mode) bool { return slices.Contains(bench.Yardsticks(), m) }) {
		return usage("--mode udp and tcp need a network between the ends: make one with --veth, or measure a provider that has one")
	}
	if c.Waits, err = choose("wait", o.waits, bench.Waits()); err != nil {
		return err
	}
	if c.Sizes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	level, ok := levels[o.level]
	if !ok {
		return usage("--reliability %q: take one of %s", o.level, strings.Join(slices.Sorted(maps.Keys(levels)), ", "))
	}
	c.Level, o.noOffloads = level, o.offloads == "off"
	switch {
	case !slices.Contains(providerNames(), o.provider):
		return usage("--provider %q: this build has %s", o.provider, builtProviders())
	case o.offloads != "auto" && (o.offloads != "off" || o.provider != "roce"):
		return usage("--offloads is auto, or off with --provider roce; for a URI write …?offloads=off")
	case c.Rounds < 1 || c.Rounds > 1000:
		return usage("--rounds %d is not in 1 to 1000", c.Rounds)
	case c.Ops < 0 || c.Ops > bench.MaximumOps:
		return usage("--count %d is not in 0 to %d", c.Ops, bench.MaximumOps)
	case c.VIs < 1 || c.VIs > bench.MaximumVIs:
		return usage("--vis %d is not in 1 to %d", c.VIs, bench.MaximumVIs)
	case c.Many < 1 || c.Many > bench.MaximumVIs:
		return usage("--many %d is not in 1 to %d", c.Many, bench.MaximumVIs)
	case c.Spin < 0 || c.Timeout < 0:
		return usage("--busy-poll and --timeout are not negative")
	case o.veth != 0 && (o.veth < netns.MinimumMTU || o.veth > netns.MaximumMTU):
		return usage("--veth %d is not in %d to %d", o.veth, netns.MinimumMTU, netns.MaximumMTU)
	case o.chartFormat != "svg" && o.chartFormat != "png":
		return usage("--chart-format is svg or png, not %q", o.chartFormat)
	}
	return nil
}

// shorten makes the run a short one, as far as the flags do not say otherwise.
func (o *benchOptions) shorten(given func(string) bool) {
	if !given("sizes") {
		o.sizes = []string{"64", "4K", "64K"}
	}
	if !given("rounds") {
		o.config.Rounds = 1
	}
	if !given("count") {
		o.config.Brief = true
	}
	if !given("many") {
		o.config.Many = 100
	}
}

// parseSizes reads the list of sizes, each once and in ascending order.
func parseSizes(list []string) ([]int, error) {
	var sizes []int
	for _, s := range list {
		n, err := config.ParseSize(s)
		if err != nil {
			return nil, usage("--sizes: %v", err)
		}
		if n > bench.MaximumSize {
			return nil, usage("--sizes: %s is more than %s", s, config.Size(bench.MaximumSize))
		}
		sizes = append(sizes, int(n))
	}
	if len(sizes) == 0 {
		return nil, usage("--sizes names no size")
	}
	slices.Sort(sizes)
	return slices.Compact(sizes), nil
}

// untilSignal returns a context that ends with a signal; the cause has the exit
// code of a process that the signal kills.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(&exit{128 + int(s.(syscall.Signal)), fmt.Errorf("stopped by %v", s)})
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}
