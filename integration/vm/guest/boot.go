package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/viablk/viablk/integration/vm/agent"
	"golang.org/x/sys/unix"
)

// applets is the folder of busybox's applets, the last in PATH: what a test
// brings along comes before them.
const applets = "/usr/lib/busybox"

// settings are settings of the kernel.
var settings = map[string]string{
	// Its boot is quiet; what it says from now on is about the test.
	"/proc/sys/kernel/printk": "7",
	// An address is usable at once, without a second of duplicate detection.
	"/proc/sys/net/ipv6/conf/all/accept_dad":     "0",
	"/proc/sys/net/ipv6/conf/default/accept_dad": "0",
}

// boot makes the machine usable.
func boot(manifest agent.Manifest) error {
	for _, m := range []struct{ kind, point string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.point, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.point, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.point, err)
		}
	}
	for name, value := range map[string]string{
		"PATH": "/usr/sbin:/usr/bin:" + applets, "HOME": "/root", "LC_ALL": "C",
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	for path, value := range settings {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(applets, 0o755); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"busybox", "--install", "-s", applets},
		{"busybox", "ip", "link", "set", "lo", "up"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	for _, line := range manifest.Load {
		if err := load(manifest, line); err != nil {
			return err
		}
	}
	return nil
}
