package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The units of systemd are understood by systemd, name nothing that is not there but
// viablk, and call viablk as it can be called.
func TestUnits(t *testing.T) {
	const installed = "/usr/bin/viablk"
	files, err := filepath.Glob("../contrib/systemd/viablk*.s*")
	if err != nil || len(files) < 3 {
		t.Fatalf("units %v, %v", files, err)
	}
	folder, commands := t.TempDir(), 0
	verify := []string{"verify", "--man=no"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(folder, filepath.Base(file))
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(text), installed, program(t))), 0o600); err != nil {
			t.Fatal(err)
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
			// Without the files that it needs, which tells that all else is right.
			args = strings.NewReplacer("%i", "nbd0", "/etc/", folder+"/").Replace(args)
			cmd := exec.Command(program(t), strings.Fields(args)...)
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
