//go:build vm

package vm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// systemdFiles are files of a machine with systemd, by their paths. The units
// log to the console, which the host keeps.
var systemdFiles = map[string]string{
	"/etc/systemd/system/default.target": `
		[Unit]
		Requires=basic.target
		Wants=systemd-udevd.service systemd-udev-trigger.service
		After=basic.target systemd-udev-trigger.service
		AllowIsolate=yes`,
	"/etc/systemd/system.conf": `
		[Manager]
		LogTarget=kmsg
		DefaultStandardOutput=tty
		DefaultTimeoutStopSec=30s`,
	"/etc/systemd/system/viablk-target.service.d/timeout.conf": `
		[Service]
		DeviceAllow=char-tty rw
		DeviceAllow=/dev/console rw
		WatchdogSec=4`,
	"/etc/machine-id": "0123456789abcdef0123456789abcdef",
	"/etc/group":      "root:x:0:\ndisk:x:6:\n",
	"/etc/nbdtab":     "nbd0 /run/viablk-target/target.sock disk _viablk_transport=shm",
	"/etc/fstab":      "/dev/disk/by-viablk/disk /mnt ext4 _netdev,noauto 0 0",
	"/etc/viablk/target.yaml": `{
		"target": {
			"listen": ["via+shm:///?socket=/run/viablk-target/target.sock"],
			"exports": [{"name": "disk", "backend": "file:/dev/vda"}]
		}}`,
}

// TestSystemd has systemd as the first process of a machine, and the units of
// contrib: the target begins when a client comes, in its sandbox and under its
// watchdog; a remote disk is a device that can be mounted, its process replaced
// while it is, and all of it ends in order when the machine does.
func TestSystemd(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(disk, nil, 0o600))
	must(t, os.Truncate(disk, 32<<20))
	b := bootSystemd(t, disk)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"target on demand", b.testOnDemand},
		{"reload", b.testReload},
		{"new process", b.testNewProcess},
		{"sandbox", b.testSandbox},
		{"watchdog", b.testWatchdog},
		{"package removed", b.testRemoval},
		{"device", b.testDeviceUnit},
		{"restart while mounted", b.testRestartMounted},
		{"package upgraded", b.testUpgrade},
		{"shutdown", b.testShutdown},
	} {
		if !t.Run(test.name, test.run) {
			return
		}
	}
	run := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	run("e2fsck", "-fn", disk)
	if out := run("debugfs", "-R", "cat /file", disk); !strings.HasSuffix(out, "first\nsecond\nthird\n") {
		t.Errorf("the disk has %q", out)
	}
}

// systemdBed is a machine with systemd.
type systemdBed struct{ *deviceBed }

// bootSystemd boots a machine with a disk and waits for systemd to have begun.
func bootSystemd(t *testing.T, disk string) *systemdBed {
	t.Helper()
	c := Config{
		Memory:  1024,
		Init:    "/usr/lib/systemd/systemd",
		Disks:   []Disk{{Path: disk}},
		Modules: []string{"nbd nbds_max=2", "ext4"},
		Tools: []string{
			"systemd/lib/systemd/systemd", "systemd/lib/systemd/systemd-shutdown", "systemd/systemctl", "systemd/systemd-analyze",
			"systemd/systemd-sysusers", "systemd/lib/systemd/system-generators/systemd-fstab-generator",
			"udev/lib/systemd/systemd-udevd", "udev/udevadm", "udev/lib/udev/rules.d/50-udev-default.rules", "systemd/lib/udev/rules.d/99-systemd.rules",
			"mount/mount", "mount/umount", "e2fsprogs/mkfs.ext4",
		},
		Files: map[string]string{
			"/usr/bin/viablk":                       Program(t, modulePath+"/cmd/viablk"),
			"/usr/lib/sysusers.d/viablk.conf":       "../../contrib/systemd/viablk.sysusers",
			"/usr/lib/udev/rules.d/60-viablk.rules": "../../contrib/udev/60-viablk.rules",
		},
	}
	for _, script := range []string{"installed", "remove"} {
		c.Files["/package/"+script] = "../../contrib/package/" + script
	}
	for _, unit := range []string{"viablk-target.service", "viablk-target.socket", "viablk@.service"} {
		c.Files["/usr/lib/systemd/system/"+unit] = "../../contrib/systemd/" + unit
	}
	for _, unit := range []string{
		"sysinit.target", "basic.target", "sockets.target", "slices.target", "local-fs.target", "local-fs-pre.target",
		"network-online.target", "remote-fs.target", "remote-fs-pre.target", "modprobe@.service",
		"shutdown.target", "umount.target", "final.target", "poweroff.target", "systemd-poweroff.service",
	} {
		c.Tools = append(c.Tools, "systemd/lib/systemd/system/"+unit)
	}
	for _, unit := range []string{
		"systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udev-trigger.service",
	} {
		c.Tools = append(c.Tools, "udev/lib/systemd/system/"+unit)
	}
	folder := t.TempDir()
	for name, text := range systemdFiles {
		file := filepath.Join(folder, strings.ReplaceAll(name, "/", "_"))
		must(t, os.WriteFile(file, []byte(strings.TrimSpace(strings.ReplaceAll(text, "\n\t\t", "\n"))+"\n"), 0o644))
		c.Files[name] = file
	}
	v := Boot(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 8*waitLimit)
	t.Cleanup(cancel)
	b := &systemdBed{&deviceBed{VM: v, ctx: ctx}}
	b.await(t, "running", "systemctl", "is-system-running")
	b.script(t, "echo on > /proc/sys/kernel/printk_devkmsg; mkdir -p /mnt; systemd-sysusers viablk.conf; chown viablk /dev/vda")
	return b
}

// property returns a property of a unit.
func (b *systemdBed) property(t *testing.T, unit, name string) string {
	t.Helper()
	return strings.TrimSpace(b.run(t, "systemctl", "show", "-P", name, unit))
}

// testOnDemand has the first client begin the target.
func (b *systemdBed) testOnDemand(t *testing.T) {
	b.run(t, "systemctl", "start", "viablk-target.socket")
	if got := b.property(t, "viablk-target.service", "ActiveState"); got != "inactive" {
		t.Errorf("the target is %s before a client came", got)
	}
	if out := b.run(t, "viablk", "list", "nbd://127.0.0.1/"); !strings.Contains(out, "disk") || !strings.Contains(out, "32MiB") {
		t.Error(out)
	}
	for name, want := range map[string]string{"ActiveState": "active", "SubState": "running", "Type": "notify", "NRestarts": "0"} {
		if got := b.property(t, "viablk-target.service", name); got != want {
			t.Errorf("%s of the target is %s, not %s", name, got, want)
		}
	}
	// Ready is when all of it listens.
	b.run(t, "viablk", "list", "via+shm:///?socket=/run/viablk-target/target.sock")
}

// testReload has systemd reload the target, with a configuration that is right
// and one that is not.
func (b *systemdBed) testReload(t *testing.T) {
	const file = "/etc/viablk/target.yaml"
	process := b.property(t, "viablk-target.service", "MainPID")
	b.script(t, `sed -i 's/"name": "disk"/"name": "disk", "description": "a disk"/' `+file)
	b.run(t, "systemctl", "reload", "viablk-target.service")
	if out := b.run(t, "viablk", "list", "nbd://127.0.0.1/"); !strings.Contains(out, "a disk") {
		t.Error(out)
	}
	b.script(t, "cp "+file+" /right && sed -i 's/file:/fil:/' "+file)
	if r := b.Run(b.ctx, "systemctl", "reload", "viablk-target.service"); r.OK() || r.Err != nil {
		t.Errorf("a wrong configuration: %v", r)
	}
	if out := b.run(t, "viablk", "list", "nbd://127.0.0.1/"); !strings.Contains(out, "a disk") {
		t.Error(out)
	}
	b.script(t, "cp /right "+file)
	b.run(t, "systemctl", "reload", "viablk-target.service")
	if now := b.property(t, "viablk-target.service", "MainPID"); now != process {
		t.Errorf("process %s, before %s", now, process)
	}
}

// testNewProcess has the target start its program anew: the unit stays active
// with the new process as its main one, and with the socket of systemd.
func (b *systemdBed) testNewProcess(t *testing.T) {
	const unit = "viablk-target.service"
	before, restarts := b.property(t, unit, "MainPID"), b.property(t, unit, "NRestarts")
	out := b.run(t, "viablk", "upgrade", "--admin", "/run/viablk-target/status.sock")
	after := b.property(t, unit, "MainPID")
	if out != "process "+after+" has taken over from process "+before+"\n" {
		t.Errorf("the main process was %s and is %s: %s", before, after, out)
	}
	for name, want := range map[string]string{"ActiveState": "active", "SubState": "running", "NRestarts": restarts} {
		if got := b.property(t, unit, name); got != want {
			t.Errorf("%s of the target is %s, not %s", name, got, want)
		}
	}
	b.await(t, "gone", "sh", "-c", "[ -e /proc/"+before+" ] || echo gone")
	for _, uri := range []string{"nbd://127.0.0.1/", "via+shm:///?socket=/run/viablk-target/target.sock"} {
		b.run(t, "viablk", "list", uri)
	}
}

// exposure matches the verdict of systemd-analyze security.
var exposure = regexp.MustCompile(`Overall exposure level for viablk-target\.service: ([0-9.]+) OK`)

// testSandbox looks at the process of the target: systemd has put it where the
// unit says.
func (b *systemdBed) testSandbox(t *testing.T) {
	if out := b.run(t, "systemd-analyze", "security", "--no-pager", "viablk-target.service"); !exposure.MatchString(out) {
		t.Error(out)
	}
	process := "/proc/" + b.property(t, "viablk-target.service", "MainPID")
	status := b.run(t, "cat", process+"/status")
	const capabilities = "0000000000000000"
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t" + capabilities, "CapEff:\t" + capabilities, "CapAmb:\t" + capabilities} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("no %q in %s", want, status)
		}
	}
	b.script(t, `
		[ $(stat -c %U `+process+`) = viablk ]
		[ $(stat -c %U /run/viablk-target/target.sock) = viablk ]
		[ $(stat -c %U:%a /var/lib/viablk) = viablk:755 ]
		awk '$5 == "/" && $6 ~ /^ro/ {ro = 1} $5 == "/var/lib/viablk" && $6 ~ /^rw/ {rw = 1} END {exit !(ro && rw)}' `+process+`/mountinfo`)
}

// testWatchdog stops the target's process from working: systemd ends it and
// begins another one.
func (b *systemdBed) testWatchdog(t *testing.T) {
	before := b.property(t, "viablk-target.service", "MainPID")
	b.run(t, "systemctl", "kill", "--signal=STOP", "--kill-who=main", "viablk-target.service")
	b.await(t, "1", "systemctl", "show", "-P", "NRestarts", "viablk-target.service")
	b.await(t, "active", "systemctl", "is-active", "viablk-target.service")
	if after := b.property(t, "viablk-target.service", "MainPID"); after == before || after == "0" {
		t.Errorf("process %s, before %s", after, before)
	}
	if !strings.Contains(b.Console(), "viablk-target.service: Watchdog timeout") {
		t.Error("it was not the watchdog")
	}
	b.run(t, "viablk", "list", "nbd://127.0.0.1/")
}

// testRemoval runs what runs before the package is removed: it detaches the
// device and ends the target.
func (b *systemdBed) testRemoval(t *testing.T) {
	b.run(t, "systemctl", "start", "viablk@nbd0.service")
	b.run(t, "/package/remove", "remove")
	for _, unit := range []string{"viablk@nbd0.service", "viablk-target.service", "viablk-target.socket"} {
		b.await(t, "inactive", "systemctl", "show", "-P", "ActiveState", unit)
	}
	b.script(t, "[ ! -e /sys/block/nbd0/pid ]")
	b.run(t, "/package/installed", "configure", "")
	b.run(t, "systemctl", "start", "viablk-target.socket", "viablk-target.service")
}

// testUpgrade runs what runs around an upgrade: the processes of the mounted
// device and of the target go on. The package cannot be removed.
func (b *systemdBed) testUpgrade(t *testing.T) {
	processes := func() string {
		return b.property(t, "viablk@nbd0.service", "MainPID") + " " + b.property(t, "viablk-target.service", "MainPID")
	}
	before := processes()
	for _, command := range [][]string{
		{"/package/remove", "upgrade", "2.0"}, {"/package/installed", "configure", "1.0"}, // dpkg
		{"/package/installed", "2"}, {"/package/remove", "1"}, // rpm
		{"/package/remove", "remove", "in-favour", "viablk-verbs", "2.0"},
	} {
		b.run(t, command...)
	}
	for _, command := range [][]string{{"/package/remove", "remove"}, {"/package/remove", "0"}} {
		b.refused(t, 75, "/dev/nbd0 is mounted at /mnt: unmount it first", command...)
	}
	if after := processes(); after != before {
		t.Errorf("processes %s, before %s", after, before)
	}
	b.testNewProcess(t)
	// This is in the kernel's cache when the machine ends.
	b.script(t, "echo third >> /mnt/file")
}

// testDeviceUnit attaches what /etc/nbdtab says, and mounts it by its link.
func (b *systemdBed) testDeviceUnit(t *testing.T) {
	b.run(t, "systemctl", "start", "viablk@nbd0.service")
	b.await(t, "/dev/nbd0", "readlink", "-f", "/dev/disk/by-viablk/disk")
	if got := b.property(t, "viablk@nbd0.service", "ActiveState"); got != "active" {
		t.Errorf("the unit is %s", got)
	}
	b.script(t, "mkfs.ext4 -q /dev/nbd0")
	b.run(t, "systemctl", "start", "mnt.mount")
	b.script(t, "grep -q '^/dev/nbd0 /mnt ext4 ' /proc/mounts && echo first > /mnt/file && sync")
}

// testRestartMounted replaces the process of the mounted device.
func (b *systemdBed) testRestartMounted(t *testing.T) {
	before := b.property(t, "viablk@nbd0.service", "MainPID")
	b.run(t, "systemctl", "restart", "viablk@nbd0.service")
	if after := b.property(t, "viablk@nbd0.service", "MainPID"); after == before || after == "0" {
		t.Errorf("process %s, before %s", after, before)
	}
	b.script(t, `
		echo 3 > /proc/sys/vm/drop_caches
		[ "$(cat /mnt/file)" = first ] && echo second >> /mnt/file
		[ $(systemctl show -P ActiveState mnt.mount) = active ]`)
}

// testShutdown ends the machine: first what is mounted, then the device, then
// the target.
func (b *systemdBed) testShutdown(t *testing.T) {
	before := len(b.Console())                // a detach during the kernel's scan is in it
	_ = b.Run(b.ctx, "systemctl", "poweroff") // whose end may be the agent's
	select {
	case <-b.emulator.ended:
	case <-time.After(2 * waitLimit):
		t.Fatal("the machine does not end")
	}
	console := b.Console()
	last := -1
	for _, unit := range []string{"mnt.mount", "viablk@nbd0.service"} {
		at := strings.LastIndex(console, unit+": Deactivated successfully")
		if at <= last {
			t.Errorf("%s did not end in order", unit)
		}
		last = at
	}
	if strings.Contains(console[before:], "I/O error") {
		t.Error("there were I/O errors")
	}
}
