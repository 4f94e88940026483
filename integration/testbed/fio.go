package testbed

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FioSide is what a job did in one direction.
type FioSide struct {
	IOs   uint64  `json:"total_ios"`
	IOPS  float64 `json:"iops"`
	Clock struct {
		Mean       float64            `json:"mean"` // nanoseconds
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

// Median is the median latency, in nanoseconds.
func (s *FioSide) Median() float64 { return s.Clock.Percentile["50.000000"] }

// FioJob is what fio reports of one job.
type FioJob struct {
	Name   string  `json:"jobname"`
	Error  int     `json:"error"`
	Read   FioSide `json:"read"`
	Write  FioSide `json:"write"`
	System float64 `json:"sys_cpu"`
	User   float64 `json:"usr_cpu"`
}

// FioClient is who runs fio. The zero value is who runs the tests.
type FioClient struct {
	home string // of a user other than root, with certificates
	at   Place  // nil: that of this process
}

// ClientAt is a client at a place.
func ClientAt(at Place) FioClient { return FioClient{at: at} }

// ClientWith is a client with the certificates of a folder. fio cannot be told
// where they are: libnbd looks for them at home, and for root in /etc.
func ClientWith(t testing.TB, certificates string) FioClient {
	t.Helper()
	Requires(t, "setpriv")
	home := Folder(t)
	Must(t, os.Chmod(home, 0o755))
	place := filepath.Join(home, ".pki", "libnbd")
	Must(t, os.MkdirAll(place, 0o755))
	Must(t, os.CopyFS(place, os.DirFS(certificates)))
	Must(t, filepath.WalkDir(place, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o755))
	}))
	return FioClient{home: home}
}

// start starts fio with its NBD engine. It may spin for ever when its server
// dies: the caller waits with a limit.
func (c FioClient) start(t testing.TB, uri string, args ...string) *Tool {
	t.Helper()
	Requires(t, "fio")
	args = append([]string{
		"--name=job", "--ioengine=nbd", "--uri=" + uri, "--thread", "--output-format=json",
	}, args...)
	switch {
	case c.at != nil:
		return StartPathAt(t, c.at, nil, Locate("fio"), args...)
	case c.home == "":
		return StartTool(t, "fio", args...)
	}
	unprivileged := []string{"--reuid=65534", "--regid=65534", "--clear-groups", Locate("fio")}
	return StartPath(t, []string{"HOME=" + c.home}, Locate("setpriv"), append(unprivileged, args...)...)
}

// Run runs fio, which must succeed.
func (c FioClient) Run(t testing.TB, uri string, args ...string) []FioJob {
	t.Helper()
	p := c.start(t, uri, args...)
	Succeed(t, p)
	jobs := FioReport(t, p)
	for _, j := range jobs {
		if j.Error != 0 || j.Read.IOs+j.Write.IOs == 0 {
			t.Fatalf("%s: error %d, %d reads, %d writes\n%s", p, j.Error, j.Read.IOs, j.Write.IOs, p.Output())
		}
	}
	return jobs
}

// StartFio starts fio as who runs the tests.
func StartFio(t testing.TB, uri string, args ...string) *Tool {
	t.Helper()
	return FioClient{}.start(t, uri, args...)
}

// FioReport decodes the report of a run.
func FioReport(t testing.TB, c *Tool) []FioJob {
	t.Helper()
	text := c.Stdout.String()
	at := strings.IndexByte(text, '{')
	if at < 0 {
		t.Fatalf("%s: no report\n%s", c, c.Output())
	}
	var report struct {
		Jobs []FioJob `json:"jobs"`
	}
	Must(t, json.NewDecoder(strings.NewReader(text[at:])).Decode(&report))
	return report.Jobs
}

// Fio runs fio as who runs the tests; it must succeed.
func Fio(t testing.TB, uri string, args ...string) []FioJob {
	t.Helper()
	return FioClient{}.Run(t, uri, args...)
}

// verify makes fio read back what it wrote, and stop at the first difference.
var verify = []string{"--verify=crc32c", "--verify_fatal=1", "--verify_dump=0", "--verify_state_save=0"}

// WithVerify adds arguments to verify.
func WithVerify(args ...string) []string { return append(args, verify...) }
