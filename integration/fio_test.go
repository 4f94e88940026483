package integration

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fioSide is what a job did in one direction.
type fioSide struct {
	IOs   uint64  `json:"total_ios"`
	IOPS  float64 `json:"iops"`
	Clock struct {
		Mean float64 `json:"mean"` // nanoseconds
	} `json:"clat_ns"`
}

// fioJob is what fio reports of one job.
type fioJob struct {
	Name   string  `json:"jobname"`
	Error  int     `json:"error"`
	Read   fioSide `json:"read"`
	Write  fioSide `json:"write"`
	System float64 `json:"sys_cpu"`
	User   float64 `json:"usr_cpu"`
}

// fioClient is who runs fio. The zero value is who runs the tests.
type fioClient struct {
	home string // of a user other than root, with certificates
}

// clientWith is a client with the certificates of a folder. fio cannot be told
// where they are: libnbd looks for them at home, and for root in /etc.
func clientWith(t testing.TB, certificates string) fioClient {
	t.Helper()
	requires(t, "setpriv")
	home := folder(t)
	must(t, os.Chmod(home, 0o755))
	place := filepath.Join(home, ".pki", "libnbd")
	must(t, os.MkdirAll(place, 0o755))
	must(t, os.CopyFS(place, os.DirFS(certificates)))
	must(t, filepath.WalkDir(place, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o755))
	}))
	return fioClient{home: home}
}

// start starts fio with its NBD engine. It may spin for ever when its server
// dies: whoever starts it waits with a limit.
func (c fioClient) start(t testing.TB, uri string, args ...string) *tool {
	t.Helper()
	requires(t, "fio")
	args = append([]string{
		"--name=job", "--ioengine=nbd", "--uri=" + uri, "--thread", "--output-format=json",
	}, args...)
	if c.home == "" {
		return startTool(t, "fio", args...)
	}
	nobody := []string{"--reuid=65534", "--regid=65534", "--clear-groups", locate("fio")}
	return startPath(t, []string{"HOME=" + c.home}, locate("setpriv"), append(nobody, args...)...)
}

// run runs fio, which must succeed.
func (c fioClient) run(t testing.TB, uri string, args ...string) []fioJob {
	t.Helper()
	p := c.start(t, uri, args...)
	succeed(t, p)
	jobs := fioReport(t, p)
	for _, j := range jobs {
		if j.Error != 0 || j.Read.IOs+j.Write.IOs == 0 {
			t.Fatalf("%s: error %d, %d reads, %d writes\n%s", p, j.Error, j.Read.IOs, j.Write.IOs, p.output())
		}
	}
	return jobs
}

// startFio starts fio as who runs the tests.
func startFio(t testing.TB, uri string, args ...string) *tool {
	t.Helper()
	return fioClient{}.start(t, uri, args...)
}

// fioReport decodes the report of a run.
func fioReport(t testing.TB, c *tool) []fioJob {
	t.Helper()
	text := c.stdout.String()
	at := strings.IndexByte(text, '{')
	if at < 0 {
		t.Fatalf("%s: no report\n%s", c, c.output())
	}
	var report struct {
		Jobs []fioJob `json:"jobs"`
	}
	must(t, json.NewDecoder(strings.NewReader(text[at:])).Decode(&report))
	return report.Jobs
}

// fio runs fio as who runs the tests; it must succeed.
func fio(t testing.TB, uri string, args ...string) []fioJob {
	t.Helper()
	return fioClient{}.run(t, uri, args...)
}

// verify makes fio read back what it wrote, and stop at the first difference.
var verify = []string{"--verify=crc32c", "--verify_fatal=1", "--verify_dump=0", "--verify_state_save=0"}

// withVerify adds arguments to verify.
func withVerify(args ...string) []string { return append(args, verify...) }

func TestFioVerifiesWhatItWrote(t *testing.T) {
	for _, c := range []struct {
		name string
		disk func(testing.TB) disk
		args []string
	}{
		{"sizes from 512 to 1 MiB", memoryDisk("64MiB"), withVerify("--rw=randrw", "--bsrange=512-1m", "--iodepth=32", "--size=64m")},
		{"one size, deep", fileDisk(32 << 20), withVerify("--rw=randrw", "--bs=4k", "--iodepth=128", "--size=16m", "--fsync=64")},
		{"four connections", memoryDisk("64MiB"), withVerify("--rw=randrw", "--bsrange=4k-256k", "--bs_unaligned=0", "--iodepth=16", "--size=16m",
			"--numjobs=4", "--offset_increment=16m", "--group_reporting")},
		{"trims between", fileDisk(32 << 20), []string{"--rw=randtrimwrite", "--bs=64k", "--iodepth=16", "--size=32m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, c.disk, func(t *testing.T, s service) { fio(t, s.uri, c.args...) })
		})
	}
}
