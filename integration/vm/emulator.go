package vm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// emulatorProgram is QEMU for the processor that Debian's kernel package is
// for.
const emulatorProgram = "qemu-system-x86_64"

// kernelArguments make the boot short and repeatable. An emulated processor has
// nothing to mitigate; its clock is the host's, so that the kernel need not
// supervise it, which fails when the host is busy; a panic ends the machine.
const kernelArguments = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr " +
	"tsc=reliable no_timer_check cryptomgr.notests i8042.noprobe 8250.nr_uarts=1"

// emulator is a running QEMU.
type emulator struct {
	cmd     *exec.Cmd
	start   time.Time
	channel net.Conn // to the agent
	console console
	ended   chan struct{} // closed when it is gone
	state   string        // how it ended, once it has
}

// startEmulator starts QEMU with a kernel and an archive. The ends of cables in
// c are its own from now on.
func startEmulator(c Config, k *kernel, archive string) (*emulator, error) {
	path, err := exec.LookPath(emulatorProgram)
	if err != nil {
		return nil, fmt.Errorf("%w: make deps installs it", err)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make the agent's channel: %w", err)
	}
	here, there := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel")
	defer here.Close()
	defer there.Close()
	e := &emulator{cmd: exec.Command(path), start: time.Now(), ended: make(chan struct{})}
	if e.channel, err = net.FileConn(here); err != nil {
		return nil, fmt.Errorf("make the agent's channel: %w", err)
	}
	e.cmd.ExtraFiles = []*os.File{there}
	e.cmd.Args = append(e.cmd.Args, "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-monitor", "none", "-serial", "stdio",
		"-accel", "tcg,thread=multi", "-cpu", processor,
		"-smp", strconv.Itoa(c.CPUs), "-m", strconv.Itoa(c.Memory),
		"-kernel", k.image, "-initrd", archive, "-append", kernelArguments,
		"-chardev", "socket,id=agent,fd=3", "-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=agent")
	defer func() {
		for _, file := range e.cmd.ExtraFiles[1:] {
			_ = file.Close()
		}
	}()
	if err := e.addDevices(c); err != nil {
		_ = e.channel.Close()
		return nil, err
	}
	e.cmd.Stdout, e.cmd.Stderr = &e.console, &e.console
	e.cmd.WaitDelay = time.Second
	// Its own group, so that an interrupt from the terminal leaves it to the
	// test.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go e.routineRun(started)
	if err := <-started; err != nil {
		_ = e.channel.Close()
		return nil, fmt.Errorf("start %s: %w", emulatorProgram, err)
	}
	return e, nil
}

// processor has what Debian's programs and modules can make use of, and nothing
// that only costs time to emulate.
const processor = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+pclmulqdq,+rdrand"

// addDevices adds disks and NICs.
func (e *emulator) addDevices(c Config) error {
	for i, d := range c.Disks {
		readOnly := "off"
		if d.ReadOnly {
			readOnly = "on"
		}
		e.cmd.Args = append(e.cmd.Args,
			"-drive", fmt.Sprintf("if=none,id=disk%d,format=raw,cache=writeback,read-only=%s,file=%s",
				i, readOnly, d.file()),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d", i))
	}
	for i, n := range c.NICs {
		if n.End == nil || n.End.file == nil {
			return fmt.Errorf("NIC %d: there is no cable, or its end is in use", i)
		}
		e.cmd.ExtraFiles = append(e.cmd.ExtraFiles, n.End.detach())
		e.cmd.Args = append(e.cmd.Args,
			"-netdev", fmt.Sprintf("dgram,id=net%d,local.type=fd,local.str=%d", i, 2+len(e.cmd.ExtraFiles)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=", i, n.MAC))
	}
	return nil
}

// routineRun starts the process and waits for it on one thread: the kernel
// kills the process when the thread that started it is gone, so that it
// outlives no test run that is killed.
func (e *emulator) routineRun(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := e.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = e.cmd.Wait() // the state says it
	e.state = e.cmd.ProcessState.String()
	close(e.ended)
}

// kill ends the process at once and waits until it is gone.
func (e *emulator) kill() error {
	if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", emulatorProgram, err)
	}
	<-e.ended
	return nil
}
