package nbd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// entrant is a server whose conformance is asked for.
type entrant struct {
	name  string
	start func(t testing.TB) *nbdtest.Server
}

// conformanceSize is the size of the disks, which are sparse.
const conformanceSize = "6G"

// ourEntrants are our servers: without VIA, through it, and under TLS.
var ourEntrants = []entrant{
	{"viablk", func(t testing.TB) *nbdtest.Server {
		read := testbed.Disk{Name: "ro", Spec: "file:" + testbed.SparseFile(t, 1<<20) + "?readonly=1"}
		p := testbed.StartTarget(t, testbed.Program(t), "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "n"), testbed.Disk{Name: "disk", Spec: "memory:" + conformanceSize}, read)
		return &nbdtest.Server{Dial: dialer(t, p.URI("disk", "nbd+unix")), Export: "disk", ReadOnly: "ro"}
	}},
	{"viablk chain", func(t testing.TB) *nbdtest.Server {
		read := testbed.Disk{Name: "ro", Spec: "file:" + testbed.SparseFile(t, 1<<20) + "?readonly=1"}
		p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: "memory:" + conformanceSize}, read)
		a, b := testbed.AttachDisk(t, testbed.Program(t), p, "disk"), testbed.AttachDisk(t, testbed.Program(t), p, "ro", "--read-only")
		return &nbdtest.Server{
			Dial: dialer(t, a.URI("disk", "nbd+unix")), Export: "disk",
			DialReadOnly: dialer(t, b.URI("ro", "nbd+unix")), ReadOnly: "ro",
		}
	}},
	{"viablk TLS", func(t testing.TB) *nbdtest.Server {
		folder := testbed.Certificates(t, "asker")
		p := testbed.StartBinary(t, testbed.Program(t), "target", "--listen", "nbds://127.0.0.1:0", "--admin", filepath.Join(t.TempDir(), "a"),
			"--export", "disk=memory:"+conformanceSize, "--tls", "require", "--tls-certificates", filepath.Join(folder, "server"))
		return &nbdtest.Server{Dial: dialer(t, p.URI("disk", "nbds")), Export: "disk", TLS: clientTLS(t, folder, "asker"), Forced: true}
	}},
}

// otherEntrants are the servers that stand beside ours in the table.
var otherEntrants = []entrant{
	{"nbdkit", func(t testing.TB) *nbdtest.Server {
		serve := func(more ...string) func() (net.Conn, error) {
			socket := filepath.Join(testbed.Folder(t), "k")
			testbed.StartTool(t, "nbdkit", append(more, "-f", "-U", socket, "memory", conformanceSize)...)
			testbed.WaitForSocket(t, socket)
			return func() (net.Conn, error) { return net.Dial("unix", socket) }
		}
		return &nbdtest.Server{Dial: serve(), DialReadOnly: serve("-r")}
	}},
	{"qemu-nbd", func(t testing.TB) *nbdtest.Server {
		serve := func(more ...string) func() (net.Conn, error) {
			socket := filepath.Join(testbed.Folder(t), "q")
			testbed.StartTool(t, "qemu-nbd", append(more, "-t", "-f", "raw", "-e", "300", "--discard=unmap", "-k", socket, testbed.SparseFile(t, 6<<30))...)
			testbed.WaitForSocket(t, socket)
			return func() (net.Conn, error) { return net.Dial("unix", socket) }
		}
		return &nbdtest.Server{Dial: serve(), DialReadOnly: serve("-r")}
	}},
	{"nbd-server", func(t testing.TB) *nbdtest.Server {
		here := testbed.Folder(t)
		socket := filepath.Join(here, "n")
		text := fmt.Sprintf("[generic]\nport = %s\nlistenaddr = 127.0.0.1\nunixsock = %s\nallowlist = true\n", testbed.FreePort(t), socket)
		for name, more := range map[string]string{"disk": "", "ro": "readonly = true\n"} {
			text += fmt.Sprintf("[%s]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n%s", name, testbed.SparseFile(t, 6<<30), more)
		}
		config := filepath.Join(here, "config")
		testbed.Must(t, os.WriteFile(config, []byte(text), 0o600))
		startDaemon(t, filepath.Join(here, "pid"), "nbd-server", "-C", config)
		testbed.WaitForSocket(t, socket)
		return &nbdtest.Server{Dial: func() (net.Conn, error) { return net.Dial("unix", socket) }, Export: "disk", ReadOnly: "ro"}
	}},
}

// startDaemon starts a program that leaves its parent, -p being the option for
// the file with its process id, and ends it with the test.
func startDaemon(t testing.TB, pidFile, name string, args ...string) {
	t.Helper()
	testbed.Run(t, name, append(args, "-p", pidFile)...)
	var pid int
	testbed.Eventually(t, name+" saying its process id", func() (any, bool) {
		text, err := os.ReadFile(pidFile)
		_, scanned := fmt.Sscan(string(text), &pid)
		return err, err == nil && scanned == nil && pid > 1
	})
	t.Cleanup(func() { testbed.KillProcess(t, pid, syscall.SIGTERM) })
}

// dialer connects to the server of a URI.
func dialer(t testing.TB, uri string) func() (net.Conn, error) {
	t.Helper()
	u, err := url.Parse(uri)
	testbed.Must(t, err)
	network, address := "tcp", u.Host
	if socket := u.Query().Get("socket"); socket != "" {
		network, address = "unix", socket
	}
	return func() (net.Conn, error) { return net.Dial(network, address) }
}

// clientTLS is how a client speaks TLS with the certificates of a folder.
func clientTLS(t testing.TB, folder, name string) *tls.Config {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(folder, name, "client-cert.pem"), filepath.Join(folder, name, "client-key.pem"))
	testbed.Must(t, err)
	authority, err := os.ReadFile(filepath.Join(folder, name, "ca-cert.pem"))
	testbed.Must(t, err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("the authority has no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots, ServerName: "127.0.0.1"}
}

// notOffered are statements that are about what our servers have not, or have.
var notOffered = map[string]string{
	"H-2":   "NO_ZEROES is offered",
	"H-20":  "no TLS is asked for",
	"H-21":  "with TLS",
	"H-21d": "no TLS is asked for",
	"H-21f": "no TLS is asked for",
	"H-3":   "TLS comes first",
	"H-4":   "TLS comes first",
	"T-10":  "one export under TLS",
	"T-6f":  "FAST_ZERO is offered",

	"CVE-2017-15119": "TLS comes first",
	"CVE-2021-3716":  "no TLS is asked for",
}

// TestConformance asks our servers for every statement of the protocol.
func TestConformance(t *testing.T) {
	var applied sync.Map
	t.Run("ours", func(t *testing.T) {
		for _, e := range ourEntrants {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				server := e.start(t)
				for _, s := range nbdtest.Statements() {
					r := s.Ask(server)
					switch r.Outcome {
					case nbdtest.Pass:
						applied.Store(s.ID, true)
					case nbdtest.NotOffered:
						if notOffered[s.ID] == "" {
							t.Errorf("%s does not apply: %s", s.ID, r.Why)
						}
					default:
						t.Errorf("%s: %s: %s", s.ID, s.Text, r.Why)
					}
				}
			})
		}
	})
	for _, s := range nbdtest.Statements() {
		if _, ok := applied.Load(s.ID); !ok && s.ID != "H-2" && s.ID != "T-6f" {
			t.Errorf("%s applies to none of our servers", s.ID)
		}
	}
}

// TestConformanceOfAll prints the verdicts on ours and others as a table. Only
// ours must pass.
func TestConformanceOfAll(t *testing.T) {
	if os.Getenv("VIABLK_CONFORMANCE") != "1" {
		t.Skip("a table of other people's servers: VIABLK_CONFORMANCE=1 makes it")
	}
	statements := nbdtest.Statements()
	all := append(append([]entrant{}, ourEntrants...), otherEntrants...)
	verdicts := make([][]nbdtest.Result, len(all))
	for i, e := range all {
		server := e.start(t)
		for _, s := range statements {
			r := s.Ask(server)
			if verdicts[i] = append(verdicts[i], r); r.Outcome == nbdtest.Dead {
				server = e.start(t)
			}
			if bad := r.Outcome == nbdtest.Fail || r.Outcome == nbdtest.Dead; bad && i < len(ourEntrants) {
				t.Errorf("%s: %s: %s", e.name, s.ID, r.Why)
			} else if bad {
				t.Logf("%s: %s: %s", e.name, s.ID, r.Why)
			}
		}
	}
	t.Log("\n" + conformanceTable(all, statements, verdicts))
}

// conformanceTable is the table of all verdicts, with the sums below.
func conformanceTable(all []entrant, statements []nbdtest.Statement, verdicts [][]nbdtest.Result) string {
	var b strings.Builder
	line := func(id string, cell func(i int) string, text string) {
		fmt.Fprintf(&b, "%-15s", id)
		for i := range all {
			fmt.Fprintf(&b, " %-12s", cell(i))
		}
		fmt.Fprintf(&b, " %s\n", text)
	}
	line("", func(i int) string { return all[i].name }, "")
	for k, s := range statements {
		line(s.ID, func(i int) string { return string(verdicts[i][k].Outcome) }, s.Text)
	}
	for _, v := range []nbdtest.Outcome{nbdtest.Pass, nbdtest.Fail, nbdtest.Dead, nbdtest.NotOffered} {
		line("", func(i int) string {
			n := 0
			for _, r := range verdicts[i] {
				if r.Outcome == v {
					n++
				}
			}
			return fmt.Sprint(n)
		}, string(v))
	}
	return b.String()
}
