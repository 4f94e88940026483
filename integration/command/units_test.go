package command

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/integration/testbed"
)

// The units of systemd are understood by systemd, name nothing that is not
// there but viablk, and call viablk as it can be called.
func TestUnits(t *testing.T) {
	const installed = "/usr/bin/viablk"
	files, err := filepath.Glob("../../contrib/systemd/viablk*.s*")
	if err != nil || len(files) < 3 {
		t.Fatalf("units %v, %v", files, err)
	}
	manual, err := os.ReadFile("../../docs/device.md")
	if err != nil || !strings.Contains(string(manual), "systemd does not restart a unit that exits with 64, 77 or 78.") {
		t.Errorf("docs/device.md does not say when a unit ends for good: %v", err)
	}
	folder, commands := t.TempDir(), 0
	verify := []string{"verify", "--man=no"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(folder, filepath.Base(file))
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(text), installed, testbed.Program(t))), 0o600); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) == ".service" && !strings.Contains(string(text), "\nRestartPreventExitStatus=64 77 78\n") {
			t.Errorf("%s does not end for good as docs/device.md says", file)
		}
		switch filepath.Ext(file) {
		case ".service", ".socket":
			verify = append(verify, copied)
		}
		for line := range strings.Lines(string(text)) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="+installed+" ")
			if !ok {
				continue
			}
			commands++
			// Without the files that it needs, which tells that all else is
			// right.
			args = strings.NewReplacer("%i", "nbd0", "/etc/", folder+"/").Replace(args)
			cmd := exec.Command(testbed.Program(t), strings.Fields(args)...)
			if cmd.Args[1] == "attach" {
				cmd.Args = append(cmd.Args, "--nbdtab", folder+"/nbdtab")
			}
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no such file or directory") {
				t.Errorf("%v: exit code %d: %s", cmd.Args[1:], cmd.ProcessState.ExitCode(), out)
			}
		}
	}
	if commands != 2 {
		t.Errorf("%d commands in %v", commands, files)
	}
	if out, err := exec.Command("systemd-analyze", verify...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze %v: %v\n%s", verify, err, out)
	}
}

// exposureLimit is the worst verdict of systemd-analyze on the target. Sockets
// of the network and of this host, and the users and devices of the host, which
// disks and lists of clients name, are the rest of it.
const exposureLimit = 1.5

func TestTargetUnitIsConfined(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "../../contrib/systemd/viablk-target.service").CombinedOutput()
	verdict := regexp.MustCompile(`Overall exposure level for viablk-target\.service: ([0-9.]+) `).FindSubmatch(out)
	if err != nil || verdict == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := strconv.ParseFloat(string(verdict[1]), 64); err != nil || got > exposureLimit {
		t.Errorf("the exposure is %s, not %v:\n%s", verdict[1], exposureLimit, out)
	}
}

// Enabling a unit opens no disk to other hosts: sockets are local, and no unit
// enables another one. A service can send and receive no raw packets.
func TestUnitsListenLocally(t *testing.T) {
	files, err := filepath.Glob("../../contrib/systemd/viablk*.s*")
	if err != nil || len(files) < 3 {
		t.Fatalf("units %v, %v", files, err)
	}
	sockets := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch {
			case key == "Also":
				t.Errorf("%s enables %s too", file, value)
			case strings.HasSuffix(key, "Capabilities") || key == "CapabilityBoundingSet" || key == "RestrictAddressFamilies":
				for _, frames := range []string{"CAP_NET_RAW", "AF_PACKET"} {
					if strings.Contains(value, frames) {
						t.Errorf("%s has %s, which raw frames alone need", file, frames)
					}
				}
			case strings.HasPrefix(key, "Listen"):
				sockets++
				host, _, err := net.SplitHostPort(value)
				if address, _ := netip.ParseAddr(host); !strings.HasPrefix(value, "/") && (err != nil || !address.IsLoopback()) {
					t.Errorf("%s listens at %s", file, value)
				}
			}
		}
	}
	if sockets == 0 {
		t.Errorf("no socket in %v", files)
	}
	e, err := config.Load("../../contrib/target.yaml", nil, nil)
	if err != nil || e.Config.Insecure || len(e.Config.Target.Listen) == 0 {
		t.Fatalf("the configuration of the package: %v, %+v", err, e.Config.Target)
	}
	for _, listen := range e.Config.Target.Listen {
		if u, err := config.ParseURI(listen); err != nil || !u.Local() {
			t.Errorf("the configuration of the package listens at %s: %v", listen, err)
		}
	}
}
