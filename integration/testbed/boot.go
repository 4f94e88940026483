package testbed

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// OtherBoot is a place that looks like this machine after another start: the
// kernel's boot ID is another one there.
func OtherBoot(t testing.TB) Place {
	t.Helper()
	RequiresRoot(t)
	Requires(t, "mount")
	id := WriteFile(t, "boot_id", []byte("7f1bfb3a-4f5c-4a0f-9a5e-0d6c7a1b2c3d\n"))
	Must(t, os.Chmod(id, 0o444))
	return func(cmd *exec.Cmd) error {
		script := []string{"sh", "-c", `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, id, cmd.Path}
		cmd.Path, cmd.Args = Locate("sh"), append(script, cmd.Args[1:]...)
		started := make(chan error, 1)
		starts <- func() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Unshareflags: syscall.CLONE_NEWNS}
			started <- cmd.Start()
		}
		return <-started
	}
}
