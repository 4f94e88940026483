package nbd

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestForeignLocks: another user locks the folder of a socket, and neither the
// start nor the end of a listener waits for that. The file that they lock
// instead cannot be opened by that user.
func TestForeignLocks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("a process of another user is started by root")
	}
	folder, err := os.MkdirTemp("", "lock") // t.TempDir is in a folder that root alone enters
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	const other = 65534
	asOther := func(args ...string) *exec.Cmd {
		cmd := exec.Command("flock", args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
		return cmd
	}
	holder := asOther(folder, "-c", "echo held; read line")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lockTimeout)
	defer cancel()
	path := filepath.Join(folder, "s")
	l, err := Listen(ctx, "unix", path)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	unlock, err := lockSocket(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := asOther("-n", path+".lock", "-c", "true").Run(); err == nil {
		t.Error("another user opens the lock")
	}
	unlock()
	if err := l.Close(); err != nil {
		t.Errorf("end: %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("start and end took longer than the limit of a lock")
	}
}
