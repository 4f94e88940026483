package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// fioJobs is the folder of the jobs that users are given.
const fioJobs = "../../contrib/fio"

// startFioJobs runs a file of jobs on a disk of a new server.
func startFioJobs(t *testing.T, file, spec string) *testbed.Tool {
	t.Helper()
	testbed.Requires(t, "fio")
	socket := filepath.Join(testbed.Folder(t), "s")
	testbed.StartBinary(t, testbed.Program(t), "target", "--admin", "none",
		"--listen", "nbd+unix:///?socket="+socket, "--export", "disk="+spec)
	environment := []string{"URI=nbd+unix:///disk?socket=" + socket, "RUNTIME=1"}
	return testbed.StartPath(t, environment, testbed.Locate("fio"), "--output-format=json", file)
}

// TestFioJobs runs each job that users are given.
func TestFioJobs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(fioJobs, "*.fio"))
	testbed.Must(t, err)
	if len(files) == 0 {
		t.Fatalf("%s has no jobs", fioJobs)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			testbed.Must(t, err)
			p := startFioJobs(t, file, "memory:16MiB")
			testbed.Succeed(t, p)
			jobs := testbed.FioReport(t, p)
			if want := strings.Count(string(text), "\nrw="); len(jobs) != want {
				t.Errorf("%d jobs ran, of %d", len(jobs), want)
			}
			for _, j := range jobs {
				if j.Error != 0 || j.Read.IOs+j.Write.IOs == 0 {
					t.Errorf("%s: error %d, %d reads, %d writes", j.Name, j.Error, j.Read.IOs, j.Write.IOs)
				}
			}
		})
	}
}

// The job that verifies finds the one write that a disk has lost.
func TestFioVerifyFindsLostWrite(t *testing.T) {
	p := startFioJobs(t, filepath.Join(fioJobs, "verify.fio"), "fault:write=ignore@7:memory:16MiB")
	if code := p.Wait(t, time.Minute); code == 0 {
		t.Errorf("nothing was found\n%s", p.Output())
	}
}
