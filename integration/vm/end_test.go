//go:build vm

package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// waitLimit bounds how long a test waits for an expected event. It decides
// nothing but failure.
const waitLimit = time.Minute

// setDeadline bounds how long a test waits for frames.
func setDeadline(t testing.TB, conn net.Conn) error {
	t.Helper()
	return conn.SetDeadline(time.Now().Add(waitLimit))
}

// exists reports whether a process is there.
func exists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return !errors.Is(err, fs.ErrNotExist)
}

// A killed machine keeps the writes of its disk, loses the rest, and ends every
// wait.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	disk := sparse(t, 1<<20)
	v := Boot(t, Config{CPUs: 1, Memory: 256, Disks: []Disk{{Path: disk}}})
	v.Must("sh", "-c", "printf 'on the disk' | dd of=/dev/vda conv=fsync")
	waiting, err := v.Start(t.Context(), "sh", "-c", "printf 'in a cache' | dd of=/dev/vda bs=1 seek=4096; echo there; sleep 1000")
	must(t, err)
	must(t, waiting.Await(t.Context(), "there"))
	must(t, v.Kill())
	if exists(v.emulator.cmd.Process.Pid) {
		t.Error("the emulator still runs")
	}
	snapshot, err := os.ReadFile(disk)
	must(t, err)
	if !strings.HasPrefix(string(snapshot), "on the disk\x00") {
		t.Errorf("the disk begins with %q", snapshot[:16])
	}
	for what, err := range map[string]error{
		"the command": waiting.Wait().Err, "another": v.Run(t.Context(), "true").Err,
		"a file": v.Put("/file", nil, 0o600), "an end in good order": v.Close(),
	} {
		if !errors.Is(err, errKilled) {
			t.Errorf("%s: got %v, want %v", what, err, errKilled)
		}
	}
	must(t, v.Kill())
}

// A machine that ends in good order has written everything.
func TestClose(t *testing.T) {
	t.Parallel()
	disk := sparse(t, 16<<20)
	v := Boot(t, Config{
		CPUs: 1, Memory: 256, Modules: []string{"ext4"}, Tools: []string{"e2fsprogs/mkfs.ext4"}, Disks: []Disk{{Path: disk}},
	})
	v.Must("sh", "-c", "mkfs.ext4 -q /dev/vda && mkdir /mnt/disk && mount /dev/vda /mnt/disk")
	user, err := v.Start(t.Context(), "sh", "-c", "echo written > /mnt/disk/file; cd /mnt/disk; echo there; sleep 1000")
	must(t, err)
	must(t, user.Await(t.Context(), "there"))
	must(t, v.Close())
	if r := user.Wait(); r.OK() {
		t.Errorf("a command in a machine that ended: %v", r)
	}
	for _, command := range [][]string{{"/sbin/e2fsck", "-f", "-n", disk}, {"/sbin/debugfs", "-R", "cat /file", disk}} {
		out, err := run("", command[0], command[1:]...)
		if must(t, err); command[1] == "-R" && string(out) != "written\n" {
			t.Errorf("the file holds %q", out)
		}
	}
}

// A panic of the kernel fails what waits, and says so.
func TestPanic(t *testing.T) {
	t.Parallel()
	v := Boot(t, Config{CPUs: 1, Memory: 256})
	r := v.Run(t.Context(), "sh", "-c", "echo c > /proc/sysrq-trigger")
	if !errors.Is(r.Err, errGone) || !strings.Contains(v.Console(), "sysrq triggered crash") {
		t.Errorf("got %v; console:\n%s", r, v.Console())
	}
}

// A missing part is an error that names it, and no process is left.
func TestBootFails(t *testing.T) {
	a, _ := Cable(t)
	for want, c := range map[string]Config{
		"unable to locate package no-such-package": {Tools: []string{"no-such-package/program"}},
		"the package has none of":                  {Tools: []string{"dash/no-such-program"}},
		"the kernel has no module no_such_module":  {Modules: []string{"no-such-module"}},

		"no such file":                      {Files: map[string]string{"/a": "/no/such/file"}},
		"killed after its limit of 1ms":     {Limit: time.Millisecond},
		"there is no cable":                 {NICs: []NIC{{}}},
		"its end is in use":                 {NICs: []NIC{{End: a}, {End: a}}},
		"could not open '/no/such/disk'":    {Disks: []Disk{{Path: "/no/such/disk"}}},
		"load module nbd: invalid argument": {Modules: []string{"nbd nbds_max=many"}},
	} {
		if _, err := bootAll(t, []Config{c}); err == nil || !strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := bootAll(t, []Config{{}}); err == nil || !strings.Contains(err.Error(), "make deps installs it") {
		t.Errorf("without tools: %v", err)
	}
}

// A machine that hangs before the kernel has said a word is started anew, with
// its cable, and so is one with a wrong clock.
func TestMachineIsStartedAnew(t *testing.T) {
	qemu, err := exec.LookPath(emulatorProgram)
	must(t, err)
	path := os.Getenv("PATH")
	for name, first := range map[string]string{
		"silent":     "exec sleep 1000",
		"fast clock": `for a; do shift; case $a in console=*) a="$a tsc_early_khz=80000";; esac; set -- "$@" "$a"; done`,
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			script := fmt.Sprintf("#!/bin/sh\nif [ ! -e %s/once ]; then : > %s/once; %s; fi\nexec %s \"$@\"\n", bin, bin, first, qemu)
			must(t, os.WriteFile(filepath.Join(bin, emulatorProgram), []byte(script), 0o700))
			t.Setenv("PATH", bin+":"+path)
			if before := silentLimit; name == "silent" {
				silentLimit = time.Second
				defer func() { silentLimit = before }()
			}
			near, far := Cable(t)
			v := Boot(t, Config{CPUs: 1, Memory: 256, NICs: []NIC{{End: near, Address: "192.0.2.1/24"}}})
			defer far.Conn(t).Close()
			if out := v.Must("busybox", "ip", "addr"); !strings.Contains(out, "192.0.2.1") {
				t.Error(out)
			}
			must(t, v.checkClock())
			must(t, v.Close())
		})
	}
}

func init() { helpers["orphan"] = orphanHelper }

// orphanHelper starts an emulator, tells its process and waits to be killed.
func orphanHelper(args []string) int {
	c := Config{}.withDefaults()
	k, err := c.build(args[0])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	e, err := startEmulator(c, k, args[0])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(e.cmd.Process.Pid)
	<-e.ended
	return 1
}

// A machine does not outlive the test run that started it, however that ends.
func TestNoOrphan(t *testing.T) {
	cmd := exec.Command(os.Args[0], t.TempDir()+"/initramfs")
	cmd.Env = append(os.Environ(), helperVariable+"=orphan")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil || !exists(pid) {
		t.Errorf("process %q: %v", line, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for exists(pid) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("process %d is still there", pid)
		}
	}
}
