//go:build vm

package vm

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var attachRounds = flag.Int("attach.rounds", 2, "how often a disk is attached to measure how long that takes")

// testAttachLatency prints how long an attach takes as a device of the kernel,
// from the start of the process to the answer of the first request.
func (b *deviceBed) testAttachLatency(t *testing.T) {
	c, err := b.Start(b.ctx, "worker", "latency", "-uri", diskURI("small"), "-rounds", fmt.Sprint(*attachRounds))
	must(t, err)
	r := c.Wait()
	if !r.OK() || !strings.HasPrefix(r.Stdout, fmt.Sprintf("%d attaches: p50 ", *attachRounds)) {
		t.Fatal(r)
	}
	t.Logf("a kernel device, emulated, Linux %s: %s", b.Release, strings.TrimSpace(r.Stdout))
}

// TestAttachLatency prints the same for a socket, without a machine.
func TestAttachLatency(t *testing.T) {
	viablk, folder := Program(t, modulePath+"/cmd/viablk"), t.TempDir()
	disk, err := os.MkdirTemp("", "vb") // for the limit of a socket's path
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(disk) })
	listen := filepath.Join(disk, "t")
	target := exec.Command(viablk, "target", "--admin", "none", "--listen", "via+shm:///?socket="+listen, "--export", "disk=memory:8MiB")
	target.Env = append(os.Environ(), "TMPDIR="+folder)
	output, err := target.StdoutPipe()
	must(t, err)
	must(t, target.Start())
	for ready := bufio.NewScanner(output); ready.Scan() && !strings.Contains(ready.Text(), listen); {
	}
	worker := exec.Command(Program(t, modulePath+"/integration/vm/worker"), "latency", "-program", viablk,
		"-uri", "via+shm:///disk?socket="+listen, "-socket", filepath.Join(disk, "n"), "-rounds", fmt.Sprint(*attachRounds))
	var stderr bytes.Buffer
	worker.Stderr = &stderr
	text, err := worker.Output()
	if err != nil || !strings.HasPrefix(string(text), fmt.Sprintf("%d attaches: p50 ", *attachRounds)) {
		t.Errorf("%v: %s%s", err, text, &stderr)
	}
	must(t, target.Process.Signal(syscall.SIGTERM))
	must(t, target.Wait())
	t.Logf("a socket, this host: %s", strings.TrimSpace(string(text)))
}
