package main

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/chart"
	"github.com/viablk/viablk/cmd/viablk/internal/regbench"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// prices are what a provider may be charged for registration, by the words of
// --charge. The order is that of the output.
var prices = []struct {
	word   string
	charge func(via.Provider) via.Provider
}{
	{"nothing", func(p via.Provider) via.Provider { return p }},
	{"ucx", func(p via.Provider) via.Provider { return hook.Charge(p, hook.PriceUCX()) }},
	{"cibr", func(p via.Provider) via.Provider { return hook.Charge(p, hook.PriceCIBR()) }},
}

// priceWords lists the words of --charge.
func priceWords() []string {
	var words []string
	for _, c := range prices {
		words = append(words, c.word)
	}
	return words
}

// memoryBench are the flags that "viablk bench reg", "policy" and "copy" share.
type memoryBench struct {
	provider           string
	charges, sizes     []string
	quick              bool
	chart, chartFormat string
}

// priced is a provider and what it is charged.
type priced struct {
	name     string
	provider via.Provider
}

// String names the provider.
func (p priced) String() string { return p.name }

func (o *memoryBench) register(cmd *cobra.Command, charges ...string) {
	f := cmd.Flags()
	f.StringVar(&o.provider, "provider", providers[0].Name(), "measure provider `NAME`: "+alternatives(providerNames()))
	f.StringSliceVar(&o.charges, "charge", charges, "charge registration as `HOW`: "+alternatives(priceWords())+"; a list")
	f.StringSliceVar(&o.sizes, "sizes", nil, "`SIZES`, such as 4K,64K,1M")
	f.BoolVar(&o.quick, "quick", false, "measure for a moment, to see that all works")
	f.StringVar(&o.chart, "chart", "", "draw a chart in `FOLDER`")
	f.StringVar(&o.chartFormat, "chart-format", "svg", "draw as `FORMAT`: svg or png")
}

// complete returns the providers, the sizes, nil for the usual ones, and where
// targets listen.
func (o *memoryBench) complete() (list []priced, sizes []int, at regbench.Address, err error) {
	if list, sizes, err = o.choices(); err == nil {
		err = makeChartFolder(o.chart)
	}
	if err == nil {
		at, err = o.address()
	}
	return list, sizes, at, err
}

// choices returns the providers and the sizes, nil for the usual ones.
func (o *memoryBench) choices() (list []priced, sizes []int, err error) {
	i := slices.IndexFunc(providers, func(p via.Provider) bool { return p.Name() == o.provider })
	switch {
	case i < 0:
		return nil, nil, usage("--provider %q: this build has %s", o.provider, builtProviders())
	case o.chartFormat != "svg" && o.chartFormat != "png":
		return nil, nil, usage("--chart-format is svg or png, not %q", o.chartFormat)
	}
	if _, err := choose("charge", o.charges, priceWords()); err != nil {
		return nil, nil, err
	}
	for _, c := range prices {
		if slices.Contains(o.charges, c.word) {
			name := o.provider
			if c.word != "nothing" {
				name += " charged as " + c.word
			}
			list = append(list, priced{name, c.charge(providers[i])})
		}
	}
	if len(o.sizes) > 0 {
		if sizes, err = parseSizes(o.sizes); err != nil {
			return nil, nil, err
		}
		if sizes[0] < 512 || sizes[len(sizes)-1] > 16<<20 {
			return nil, nil, usage("--sizes are from 512 to 16M")
		}
	}
	return list, sizes, nil
}

// address returns where targets of the measurement listen: at a socket in a
// folder of their own, or, over a network, at a port of the loopback interface
// that is free.
func (o *memoryBench) address() (regbench.Address, error) {
	if o.provider == "shm" {
		return func(folder string) string { return filepath.Join(folder, "target.sock") }, nil
	}
	address := "127.0.0.1"
	if o.provider == "verbs" {
		var err error
		if address, err = rdmaAddress(); err != nil {
			return nil, err
		}
	}
	c, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	host := c.LocalAddr().String()
	if err := c.Close(); err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	return func(string) string { return host }, nil
}

// save draws a chart into the folder of the charts, if there is one.
func (o *memoryBench) save(c *chart.Chart, name string) error {
	if o.chart == "" {
		return nil
	}
	return c.Save(filepath.Join(o.chart, name+"."+o.chartFormat))
}

func (a *app) benchRegCommand() *cobra.Command {
	var o memoryBench
	cmd := &cobra.Command{
		Use:   "reg",
		Short: "Benchmark memory registration against copies",
		Long: `Measure what it takes to register and deregister memory with a connection
standing, to copy it, warm and cold, and to write it by RDMA, for sizes of 4 KiB
to 4 MiB, beside Table 1 of CIBR (RapidIO).

EVEN is the hit ratio from which on a registration cache is cheaper than copies:
0 % is always. Finding a registration that is there is measured, too.
With --charge, registration takes the processor for as long as
published NICs need: ucx is what UCX takes a NIC to need, cibr is Table 1.`,
		Example:     "  viablk bench reg --charge nothing,ucx --chart charts",
		Annotations: map[string]string{moreOutputs: "markdown"},
	}
	o.register(cmd, "nothing", "ucx", "cibr")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, sizes, at, err := o.complete()
		if err != nil {
			return err
		}
		progress := a.newProgress()
		defer progress.clear()
		c := regbench.TableConfig{Sizes: sizes}
		if o.quick {
			c.Runs = 5
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		var results []regbench.TableResult
		for _, p := range list {
			c.Progress = progress.stage(p)
			r, err := regbench.Table(ctx, p.provider, at, c)
			if err != nil {
				return err
			}
			r.Provider = p.name
			results = append(results, r)
		}
		ops := 0
		if o.quick {
			ops = 1000
		}
		inspect, err := regbench.Lookups(list[0].provider, ops)
		if err != nil {
			return err
		}
		progress.clear()
		return a.printTableOne(&o, results, inspect)
	}
	return cmd
}

func (a *app) printTableOne(o *memoryBench, results []regbench.TableResult, inspect regbench.LookupResult) error {
	c := &chart.Chart{Title: "registration and copies", X: "size (bytes)", Y: "time (µs)", LogX: true, LogY: true}
	for i, r := range results {
		for _, x := range r.Rows {
			size := float64(x.Size)
			c.Add("register and deregister, "+r.Provider, size, max(0.001, (x.Register+x.Deregister)/1e3))
			if i == 0 {
				c.Add("copy, warm", size, x.CopyWarm/1e3)
				c.Add("copy, cold", size, x.CopyCold/1e3)
				c.Add("RDMA Write", size, x.RdmaWrite/1e3)
			}
			if i == 0 && x.PaperRegister > 0 {
				c.Add("CIBR Table 1, register", size, x.PaperRegister/1e3)
				c.Add("CIBR Table 1, copy", size, x.PaperCopy/1e3)
			}
		}
	}
	if err := o.save(c, "reg"); err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(struct {
			Schema    string                 `json:"schema"` // viablk.bench.reg/v1
			Version   string                 `json:"version"`
			Providers []regbench.TableResult `json:"providers"`
			Lookup    regbench.LookupResult  `json:"lookup"`
		}{"viablk.bench.reg/v1", version().Version, results, inspect})
	}
	for _, r := range results {
		a.heading("%s: microseconds", r.Provider)
		rows := [][]string{{"SIZE", "REGISTER", "DEREGISTER", "COPY WARM", "COPY COLD", "RDMA WRITE", "EVEN WARM", "EVEN COLD", "CIBR REGISTER", "CIBR COPY"}}
		for _, x := range r.Rows {
			rows = append(rows, []string{
				shortSize(x.Size), us(x.Register), us(x.Deregister), us(x.CopyWarm), us(x.CopyCold), us(x.RdmaWrite),
				percent(x.EvenWarm), percent(x.EvenCold), us(x.PaperRegister), us(x.PaperCopy),
			})
		}
		if err := a.printTable(rows); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintf(a.stdout, "lease and release of what is registered %.1f ns, two goroutines %.1f ns, lookup alone %.1f ns\n",
		inspect.Hit, inspect.Two, inspect.Probe)
	return nil
}

// heading prints the line above a table.
func (a *app) heading(format string, args ...any) {
	fmt.Fprintf(a.stdout, format+"\n", args...)
	if a.output == "markdown" {
		fmt.Fprintln(a.stdout) // or the table were a part of the line
	}
}

// us formats nanoseconds as microseconds; none is a dash.
func us(ns float64) string {
	if ns == 0 {
		return "-"
	}
	return figure(ns / 1e3)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func (a *app) benchCopyCommand() *cobra.Command {
	var o memoryBench
	cmd := &cobra.Command{
		Use:   "copy",
		Short: "Benchmark pipelined bounce copies",
		Long: `Measure requests that go through bounce memory in chunks, each copied while
another is on its way, against requests that are copied as a whole before or
after their transfer. Both ends run in this process, with one request in flight.
MEMORY is cached, one buffer and one place on the disk over and over, or cold, others
in turn: there the memory's bandwidth bounds what overlapping can gain.`,
		Annotations: map[string]string{moreOutputs: "markdown"},
	}
	o.register(cmd, "nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, sizes, at, err := o.complete()
		if err != nil {
			return err
		}
		c := regbench.PipelineConfig{Sizes: sizes}
		if o.quick {
			c.Rounds = 1
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		progress := a.newProgress()
		defer progress.clear()
		c.Progress = progress.stage(list[0])
		steps, err := regbench.Pipeline(ctx, list[0].provider, at, c)
		if err != nil {
			return err
		}
		progress.clear()
		return a.printPipeline(&o, list[0].name, steps)
	}
	return cmd
}

func (a *app) printPipeline(o *memoryBench, provider string, steps []regbench.Step) error {
	c := &chart.Chart{
		Title: "copies that overlap with their transfer, " + provider,
		X:     "chunk (bytes)", Y: "rate, by that of copies as a whole", LogX: true,
	}
	for _, s := range steps {
		c.Add(fmt.Sprintf("%s of %s, %s", s.Direction, shortSize(s.Size), s.Memory), float64(s.Chunk), s.Gain)
	}
	if err := o.save(c, "copy"); err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(struct {
			Schema   string          `json:"schema"` // viablk.bench.copy/v1
			Version  string          `json:"version"`
			Provider string          `json:"provider"`
			Steps    []regbench.Step `json:"steps"`
		}{"viablk.bench.copy/v1", version().Version, provider, steps})
	}
	rows := [][]string{{"DIRECTION", "MEMORY", "SIZE", "CHUNK", "SERIAL us", "PIPED us", "GAIN"}}
	for _, s := range steps {
		rows = append(rows, []string{
			s.Direction, string(s.Memory), shortSize(s.Size), shortSize(s.Chunk), us(s.Serial), us(s.Piped), fmt.Sprintf("%.2f", s.Gain),
		})
	}
	return a.printTable(rows)
}
