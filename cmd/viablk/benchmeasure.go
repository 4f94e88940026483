package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
)

// benchPair measures between this process and another end of its own.
func (a *app) benchPair(ctx context.Context, o *benchOptions) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	other, err := a.startOtherEnd(ctx, o, cancel)
	if err != nil {
		return err
	}
	o.config.Network = other.network
	report, err := a.measure(ctx, o, other.uri, other.here())
	if err != nil && ctx.Err() == nil { // it may be the end of the other end
		grace := 100 * time.Millisecond
		if errors.Is(err, bench.ErrLost) {
			grace = peerTimeout // the kernel ends connections before it reports a process
		}
		select {
		case <-other.ended:
			err = context.Cause(ctx)
		case <-time.After(grace):
		}
	} else if err != nil {
		err = context.Cause(ctx)
	}
	timeout := peerTimeout
	if err != nil {
		timeout = failedTimeout
	}
	err = errors.Join(err, other.release(timeout))
	if report == nil {
		return err
	}
	if o.veth != 0 {
		report.Conditions.Network = fmt.Sprintf("veth pair with MTU %d", o.veth)
	}
	report.Conditions.Processes = 2
	if o.oneProcess {
		report.Conditions.Processes = 1
	}
	return errors.Join(a.printBench(report, o), err)
}

// benchAgainst measures against another end of the user's.
func (a *app) benchAgainst(ctx context.Context, o *benchOptions, uri string) error {
	u, err := parseBenchURI(uri)
	if err != nil {
		return err
	}
	if err := u.CheckRemote(); err != nil {
		return usage("%s: %v", u, err)
	}
	if o.config.Network, err = networkOf(ctx, u); err != nil {
		return err
	}
	report, err := a.measure(ctx, o, u, nil)
	if report == nil {
		return err
	}
	return errors.Join(a.printBench(report, o), err)
}

// benchListen is the other end for as many measuring ends as come, one after
// the other.
func (a *app) benchListen(ctx context.Context, o *benchOptions) (err error) {
	u, err := parseBenchURI(o.listen)
	if err != nil {
		return err
	}
	log := a.newBenchLog()
	nic, err := openNIC(u, log, nil, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	if err := makeFolder(u); err != nil {
		return err
	}
	server, err := bench.Listen(nic, hostOf(u))
	if err != nil {
		return listenFailure(u, err)
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	server.Processor = o.other
	if server.Network, err = networkOf(ctx, u); err != nil {
		return err
	}
	for {
		err := server.Serve(ctx)
		if ctx.Err() != nil {
			return nil // it was told to end
		}
		if err != nil {
			log.Warn("a measurement ended early", "event", "measurement_ended", "error", err)
		}
	}
}

// parseBenchURI reads the URI of an end.
func parseBenchURI(text string) (config.URI, error) {
	u, err := config.ParseURI(text)
	switch {
	case err != nil:
		return u, usage("%v", err)
	case !u.VIA():
		return u, usage("%s is no VIA URI: write via+PROVIDER://…", u)
	case u.Export != "":
		return u, usage("%s: a benchmark has no exports", u)
	}
	return u, nil
}

// measure measures against the end at a URI. With the error of an interrupted
// measurement it returns what was measured.
func (a *app) measure(ctx context.Context, o *benchOptions, u config.URI, eventfds *bench.Eventfds) (report *bench.Report, err error) {
	nic, err := openNIC(u, a.newBenchLog(), nil, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	if nic.Limits().ReliabilityLevels&o.config.Level == 0 {
		return nil, usage("--reliability %s: %s does not have it", o.level, nic.Name())
	}
	line := a.newProgress()
	defer line.clear()
	cfg := o.config
	if nic.Name() == overRoCE.Name() {
		cfg.Packets = roceTraffic
	}
	cfg.Progress = func(done, total int, c bench.Case) { line.show(done, total, c) }
	report, err = bench.Run(ctx, nic, hostOf(u), eventfds, cfg)
	if errors.Is(err, via.ErrNotReachable) || errors.Is(err, via.ErrNoMatch) || errors.Is(err, via.ErrTimeout) {
		return nil, unreachable(about("connect to", u, err))
	}
	return report, err
}

// roceTraffic returns the packets of this process's RoCE addresses.
func roceTraffic() (p bench.Packets) {
	for _, r := range networkReports() {
		p.Sent, p.SendCalls = p.Sent+r.Sent, p.SendCalls+r.SendCalls
		p.Received, p.ReceiveCalls = p.Received+r.Received, p.ReceiveCalls+r.ReceiveCalls
	}
	return p
}
