// Command guest is the first process of a virtual machine: it makes the machine
// usable, loads the modules that the test wants, and runs the agent. The kernel
// calls it by the name modprobe when it misses a module.
//
// Three processes are made of this program. The first reaps what loses its
// parent; the agent, its child, cannot, since it waits for its own commands.
// When either ends the machine ends.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/viablk/viablk/integration/vm/agent"
	"golang.org/x/sys/unix"
)

func main() {
	var err error
	switch {
	case filepath.Base(os.Args[0]) == "modprobe":
		err = modprobe(os.Args[1:])
	case os.Getpid() == 1:
		err = first()
		fmt.Fprintln(os.Stderr, "guest: the agent ended:", err)
		powerOff()
	default:
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// first is the first process: it boots, starts the agent, reaps, and returns
// when the agent has ended; or it becomes the program that the test wants in
// its place.
func first() error {
	manifest, err := agent.ReadManifest()
	if err != nil {
		return err
	}
	if err := boot(manifest); err != nil {
		return err
	}
	child, err := os.StartProcess("/init", []string{"agent"}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Env: os.Environ(),
	})
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if manifest.Init != "" {
		return fmt.Errorf("become %s: %w", manifest.Init, unix.Exec(manifest.Init, []string{manifest.Init}, os.Environ()))
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("reap: %w", err)
		case pid == child.Pid:
			return fmt.Errorf("wait status %#x", status)
		}
	}
}
