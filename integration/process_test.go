package integration

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/limit"
)

// processStatus is what a process says about itself, when it is ready and when
// it is asked.
type processStatus struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Admin   string `json:"admin"`
	Exports []struct {
		Name     string   `json:"name"`
		Size     int64    `json:"size"`
		ReadOnly bool     `json:"read_only"`
		URIs     []string `json:"uris"`
	} `json:"exports"`
	NBD        *nbd.Status        `json:"nbd"`
	Targets    []target.Status    `json:"targets"`
	Initiators []initiator.Status `json:"initiators"`
	Limits     []limitStatus      `json:"limits"`
	Network    []networkStatus    `json:"network"`
}

// limitStatus is an export with limits in a report.
type limitStatus struct {
	Export string `json:"export"`
	limit.Status
}

// networkStatus is a UDP address of RoCE in a report.
type networkStatus struct {
	Local        string `json:"local"`
	Segmentation *bool  `json:"segmentation_offload"`
	Coalescing   *bool  `json:"coalescing"`
	Sent         uint64 `json:"packets_sent"`
	SendCalls    uint64 `json:"send_calls"`
	networkDrops
	Manager struct {
		Malformed uint64 `json:"malformed"`
		Stray     uint64 `json:"stray"`
		Forged    uint64 `json:"forged"`
		Refused   uint64 `json:"refused"`
		Evicted   uint64 `json:"evicted"`
		Pending   int    `json:"pending"`
	} `json:"connection_manager"`
	Links []struct {
		Peer          string  `json:"peer"`
		QueuePair     uint32  `json:"queue_pair"`
		MTU           int     `json:"path_mtu"`
		RTT           float64 `json:"rtt_us"`
		Sent          uint64  `json:"packets_sent"`
		Retransmitted uint64  `json:"retransmitted"`
		Closed        bool    `json:"closed"`
	} `json:"links"`
}

// networkDrops are packets that a RoCE address took notice of and dropped.
type networkDrops struct {
	Overrun   uint64 `json:"overrun"`
	Malformed uint64 `json:"malformed"`
	BadICRC   uint64 `json:"bad_icrc"`
	Unknown   uint64 `json:"unknown"`
	Forged    uint64 `json:"forged"`
	Refused   uint64 `json:"refused"`
	Crowded   uint64 `json:"crowded"`
}

// dropped returns how many packets the address dropped in all.
func (n *networkStatus) dropped() uint64 {
	d, m := &n.networkDrops, &n.Manager
	return d.Overrun + d.Malformed + d.BadICRC + d.Unknown + d.Forged + d.Refused + d.Crowded +
		m.Malformed + m.Stray + m.Forged + m.Refused + m.Evicted
}

// process is a viablk process that serves.
type process struct {
	*tool
	t      testing.TB
	binary string
	ready  processStatus
	killed bool // on purpose: it could not clean up
	waited bool // the test looked at the exit code
}

// folder makes a folder for sockets, whose paths the kernel limits to 107 bytes.
func folder(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "vb")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// environment is what a process gets besides its arguments: places of its own.
func environment(t testing.TB) []string {
	place := folder(t)
	must(t, os.Mkdir(filepath.Join(place, "tmp"), 0o700))
	return []string{"XDG_RUNTIME_DIR=" + place, "TMPDIR=" + filepath.Join(place, "tmp")}
}

// start starts a viablk process and waits until it is ready. When the test ends,
// the process gets SIGTERM, must succeed, and must leave nothing behind.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	return startBinary(t, program(t), args...)
}

// startBinary is start for one of the binaries.
func startBinary(t testing.TB, path string, args ...string) *process {
	t.Helper()
	return startBinaryAt(t, startCommand, path, args...)
}

// startBinaryAt is startBinary at a place.
func startBinaryAt(t testing.TB, at place, path string, args ...string) *process {
	t.Helper()
	env := environment(t)
	p := &process{t: t, binary: path, tool: startPathAt(t, at, env, path, append(args, "-o", "json")...)}
	t.Cleanup(func() {
		p.finish()
		p.checkLog()
		p.checkPlaces(strings.TrimPrefix(env[0], "XDG_RUNTIME_DIR="))
	})
	eventually(t, p.String()+" being ready", func() (any, bool) {
		select {
		case <-p.ended:
			t.Fatalf("%s: exit code %d\n%s", p, p.code, p.output())
		default:
		}
		err := json.NewDecoder(strings.NewReader(p.stdout.String())).Decode(&p.ready)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Fatalf("%s: ready line: %v\n%s", p, err, p.output())
		}
		return p.output(), err == nil
	})
	if p.ready.PID != p.pid() {
		t.Fatalf("%s: says that it is process %d, not %d", p, p.ready.PID, p.pid())
	}
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// uri returns the URI with that scheme of an export.
func (p *process) uri(export, scheme string) string {
	p.t.Helper()
	for _, e := range p.ready.Exports {
		for _, u := range e.URIs {
			if e.Name == export && strings.HasPrefix(u, scheme+"://") {
				return u
			}
		}
	}
	p.t.Fatalf("%s: no %s URI of export %q in %+v", p, scheme, export, p.ready.Exports)
	return ""
}

// status asks the process with "viablk status".
func (p *process) status() processStatus {
	p.t.Helper()
	out := succeed(p.t, startPath(p.t, nil, p.binary, "status", "--admin", p.ready.Admin, "-o", "json"))
	var report struct {
		Processes []processStatus `json:"processes"`
	}
	must(p.t, json.Unmarshal([]byte(out), &report))
	if len(report.Processes) != 1 {
		p.t.Fatalf("status of %d processes, not one: %s", len(report.Processes), out)
	}
	return report.Processes[0]
}

// signal sends a signal.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	p.killed = p.killed || s == syscall.SIGKILL
	killProcess(p.t, p.pid(), s)
}

// endLimit is how long a process may take to end.
const endLimit = 20 * time.Second

// exitCode waits for the end of the process.
func (p *process) exitCode() int {
	p.t.Helper()
	p.waited = true
	return p.wait(p.t, endLimit)
}

// stop ends the process, which must succeed.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != 0 {
		p.t.Fatalf("%s: exit code %d after SIGTERM\n%s", p, code, p.output())
	}
}

// crash kills the process.
func (p *process) crash() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.exitCode()
}

// finish ends the process if the test did not. What does not end shows where it
// hangs.
func (p *process) finish() {
	if p.waited {
		return
	}
	killProcess(p.t, p.pid(), syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(endLimit):
		killProcess(p.t, p.pid(), syscall.SIGQUIT)
		time.Sleep(time.Second)
		p.kill()
		p.t.Errorf("%s did not end after SIGTERM\n%s", p, p.output())
		return
	}
	if p.code != 0 {
		p.t.Errorf("%s: exit code %d\n%s", p, p.code, p.output())
	}
}

// disaster is what no log may contain.
var disaster = regexp.MustCompile(`(?m)DATA RACE|^panic: |^fatal error: |^goroutine \d+ |unexpected fault address`)

// checkLog fails the test if the process reports a bug of its own.
func (p *process) checkLog() {
	if text := p.stderr.String(); disaster.MatchString(text) {
		at := disaster.FindStringIndex(text)[0]
		p.t.Errorf("%s:\n%s", p, text[at:min(len(text), at+8<<10)])
	} else if p.t.Failed() {
		p.t.Logf("%s wrote:\n%s", p, text[:min(len(text), 8<<10)])
	}
}

// checkPlaces fails the test if the process left files behind.
func (p *process) checkPlaces(place string) {
	if p.killed {
		return
	}
	for _, e := range p.ready.Exports {
		for _, u := range e.URIs {
			_, path, found := strings.Cut(u, "socket=")
			if _, err := os.Lstat(path); found && err == nil {
				p.t.Errorf("%s left its socket %s behind", p, path)
			}
		}
	}
	err := filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.HasPrefix(d.Name(), "viablk-")) {
			p.t.Errorf("%s left %s behind", p, path)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}

// memory returns a value of the process's memory by its name in
// /proc/PID/status, in bytes.
func (p *process) memory(name string) int64 {
	p.t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/status")
	must(p.t, err)
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		p.t.Fatalf("no %s in the status of process %d", name, p.pid())
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	must(p.t, err)
	return n << 10
}

// threads counts the threads of the process.
func (p *process) threads() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.pid()) + "/task")
	must(p.t, err)
	return len(entries)
}

// files counts the open file descriptors of the process.
func (p *process) files() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.pid()) + "/fd")
	must(p.t, err)
	return len(entries)
}
