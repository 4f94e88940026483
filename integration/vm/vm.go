package vm

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/vm/agent"
)

// VM is a machine that has booted. Its methods may be called concurrently, and
// from any goroutine where they return an error.
type VM struct {
	// Release is the release of its kernel.
	Release string

	t        testing.TB
	emulator *emulator
	agent    *rpc.Client
	lifetime *time.Timer
	commands sync.WaitGroup // goroutines of commands

	mu    sync.Mutex
	cause error // why it was ended from here
}

// bootLimit is how long a boot may take on a host that is busy.
const bootLimit = 5 * time.Minute

// Boot boots a machine. It is killed when the test ends, and if the test has
// failed by then its console is logged.
func Boot(t testing.TB, c Config) *VM {
	t.Helper()
	return BootAll(t, c)[0]
}

// BootAll boots several machines at the same time.
func BootAll(t testing.TB, configs ...Config) []*VM {
	t.Helper()
	machines, err := bootAll(t, configs)
	if err != nil {
		t.Fatal(err)
	}
	return machines
}

// bootAll is BootAll with an error, after which the machines may still run.
func bootAll(t testing.TB, configs []Config) ([]*VM, error) {
	machines, failures := make([]*VM, len(configs)), make([]error, len(configs))
	var boots sync.WaitGroup
	defer boots.Wait()
	for i, c := range configs {
		c = c.withDefaults()
		archive := filepath.Join(t.TempDir(), "initramfs")
		k, err := c.build(archive)
		if err != nil {
			return nil, fmt.Errorf("prepare a virtual machine: %w", err)
		}
		spares, err := c.copyEnds()
		if err != nil {
			return nil, fmt.Errorf("start a virtual machine: %w", err)
		}
		v, err := start(t, c, k, archive)
		if err != nil {
			spares.close()
			return nil, fmt.Errorf("start a virtual machine: %w", err)
		}
		boots.Go(func() { machines[i], failures[i] = v.boot(c, k, archive, spares) })
	}
	boots.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, fmt.Errorf("boot a virtual machine: %w", err)
	}
	return machines, nil
}

// start starts a machine, which is killed when the test ends.
func start(t testing.TB, c Config, k *kernel, archive string) (*VM, error) {
	e, err := startEmulator(c, k, archive)
	if err != nil {
		return nil, err
	}
	v := &VM{t: t, emulator: e, agent: rpc.NewClient(e.channel)}
	v.lifetime = time.AfterFunc(c.Limit, func() {
		_ = v.end(fmt.Errorf("the machine was killed after its limit of %v", c.Limit))
	})
	t.Cleanup(func() {
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("console of the virtual machine, process %d, %s:\n%s", e.cmd.Process.Pid, e.state, v.Console())
		}
	})
	return v, nil
}

// An emulator that emulates several processors hangs now and then before the
// kernel has said a word, or its kernel measures a wrong frequency of the
// processor's clock. Then it is started anew.
const mostBoots = 3

// silentLimit is how long the kernel may say nothing.
var silentLimit = 100 * time.Second

// boot waits until the machine has booted, and starts another one like it, with
// spare ends of its cables, when it hangs at once or its clock is wrong. It
// returns the one that runs.
func (v *VM) boot(c Config, k *kernel, archive string, spares ends) (*VM, error) {
	defer func() { spares.close() }()
	for boots := 1; ; boots++ {
		err := v.awaitAgent(boots == mostBoots)
		if err == nil {
			err = v.checkClock()
		}
		if err == nil {
			return v, v.setUp(c.NICs)
		}
		if boots == mostBoots || !errors.Is(err, errSilent) && !errors.Is(err, errClock) {
			return v, err
		}
		v.t.Logf("%v: it is started anew", err)
		_ = v.end(err)
		c = c.with(spares)
		if spares, err = c.copyEnds(); err == nil {
			v, err = start(v.t, c, k, archive)
		}
		if err != nil {
			return v, err
		}
	}
}

// A machine is started anew when it hangs, or when its clock is fast, so that
// all its time limits are short.
var (
	errSilent = errors.New("the virtual machine hangs, and has said nothing")
	errClock  = errors.New("the virtual machine has a wrong clock")
)

// checkClock compares the machine's clock with the host's. Only a fast one is
// certain: the machine's begins when the kernel does.
func (v *VM) checkClock() error {
	ctx, cancel := context.WithTimeout(v.t.Context(), bootLimit)
	defer cancel()
	var guest time.Duration
	if err := v.call(ctx, "Uptime", agent.None{}, &guest); err != nil {
		return err
	}
	if host := time.Since(v.emulator.start); guest > host+host/4 {
		return fmt.Errorf("%w: %v have passed for it in %v", errClock, guest, host)
	}
	return nil
}

// awaitAgent waits for the agent.
func (v *VM) awaitAgent(last bool) error {
	if !last {
		ctx, cancel := context.WithTimeout(v.t.Context(), silentLimit)
		defer cancel()
		err := v.call(ctx, "Ready", agent.None{}, &v.Release)
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if v.Console() == "" {
			return errSilent
		}
	}
	ctx, cancel := context.WithTimeout(v.t.Context(), bootLimit)
	defer cancel()
	return v.call(ctx, "Ready", agent.None{}, &v.Release)
}

// setUp sets up the interfaces.
func (v *VM) setUp(nics []NIC) error {
	ctx, cancel := context.WithTimeout(v.t.Context(), bootLimit)
	defer cancel()
	for i, n := range nics {
		if n.Address == "" {
			continue
		}
		script := fmt.Sprintf("busybox ip addr add %s dev eth%d && busybox ip link set eth%d mtu %d up", n.Address, i, i, n.MTU)
		if r := v.Run(ctx, "sh", "-c", script); !r.OK() {
			return fmt.Errorf("set up eth%d: %v", i, r)
		}
	}
	return nil
}

// call calls the agent. It fails when ctx ends first, or the machine.
func (v *VM) call(ctx context.Context, method string, argument, answer any) error {
	call := v.agent.Go(agent.Name+"."+method, argument, answer, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		var refusal rpc.ServerError
		if call.Error == nil || errors.As(call.Error, &refusal) {
			return call.Error
		}
		return v.gone()
	case <-v.emulator.ended:
		return v.gone()
	case <-ctx.Done():
		return fmt.Errorf("wait for the agent's %s: %w", method, context.Cause(ctx))
	}
}

// errGone says that a machine ended without Close or Kill.
var errGone = errors.New("the virtual machine ended")

// gone says why the machine, which is ending, is.
func (v *VM) gone() error {
	<-v.emulator.ended
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cause != nil {
		return v.cause
	}
	last := strings.TrimSpace(v.Console())
	return fmt.Errorf("%w: %s: %s", errGone, v.emulator.state, last[max(0, len(last)-1000):])
}

// errKilled says that the test ended a machine.
var errKilled = errors.New("the virtual machine was killed")

// Kill cuts the power: what is in the machine's memory is lost, its caches of
// disks too. The files of its disks do not change any more when Kill returns. A
// machine that ended already is no error.
func (v *VM) Kill() error { return v.end(errKilled) }

// end kills the machine and waits for everything that belongs to it.
func (v *VM) end(cause error) error {
	v.mu.Lock()
	if v.cause == nil {
		v.cause = cause
	}
	v.mu.Unlock()
	err := v.emulator.kill()
	v.lifetime.Stop()
	_ = v.agent.Close() // it says that it is closed already
	v.commands.Wait()
	return err
}

// closeLimit is how long a machine may take to end in good order.
const closeLimit = time.Minute

// Close ends the machine in good order: processes are killed, file systems are
// unmounted. It is an error if the machine ended already, or does not end.
func (v *VM) Close() error {
	select {
	case <-v.emulator.ended:
		return v.gone()
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := v.call(ctx, "PowerOff", agent.None{}, &agent.None{})
	select {
	case <-v.emulator.ended:
		if err = nil; !v.emulator.cmd.ProcessState.Success() {
			err = v.gone()
		}
	case <-ctx.Done():
	}
	return errors.Join(err, v.Kill())
}

// Console returns the end of what the kernel and the agent said.
func (v *VM) Console() string { return v.emulator.console.String() }
