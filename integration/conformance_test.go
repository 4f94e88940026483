package integration

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

	"github.com/viablk/viablk/integration/conformance"
)

// entrant is a server whose conformance is asked for.
type entrant struct {
	name  string
	start func(t testing.TB) *conformance.Server
}

// conformanceSize is the size of the disks, which are sparse.
const conformanceSize = "6G"

// ourEntrants are our servers: without VIA, through it, and under TLS.
var ourEntrants = []entrant{
	{"viablk", func(t testing.TB) *conformance.Server {
		read := disk{"ro", "file:" + sparseFile(t, 1<<20) + "?readonly=1"}
		p := startTarget(t, program(t), "nbd+unix:///?socket="+filepath.Join(folder(t), "n"), disk{"disk", "memory:" + conformanceSize}, read)
		return &conformance.Server{Dial: dialer(t, p.uri("disk", "nbd+unix")), Export: "disk", ReadOnly: "ro"}
	}},
	{"viablk chain", func(t testing.TB) *conformance.Server {
		read := disk{"ro", "file:" + sparseFile(t, 1<<20) + "?readonly=1"}
		p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", "memory:" + conformanceSize}, read)
		a, b := attachDisk(t, program(t), p, "disk"), attachDisk(t, program(t), p, "ro", "--read-only")
		return &conformance.Server{
			Dial: dialer(t, a.uri("disk", "nbd+unix")), Export: "disk",
			DialReadOnly: dialer(t, b.uri("ro", "nbd+unix")), ReadOnly: "ro",
		}
	}},
	{"viablk TLS", func(t testing.TB) *conformance.Server {
		folder := certificates(t, "asker")
		p := startBinary(t, program(t), "target", "--listen", "nbds://127.0.0.1:0", "--admin", filepath.Join(t.TempDir(), "a"),
			"--export", "disk=memory:"+conformanceSize, "--tls", "require", "--tls-certificates", filepath.Join(folder, "server"))
		return &conformance.Server{Dial: dialer(t, p.uri("disk", "nbds")), Export: "disk", TLS: clientTLS(t, folder, "asker"), Forced: true}
	}},
}

// otherEntrants are the servers that stand beside ours in the table.
var otherEntrants = []entrant{
	{"nbdkit", func(t testing.TB) *conformance.Server {
		serve := func(more ...string) func() (net.Conn, error) {
			socket := filepath.Join(folder(t), "k")
			startTool(t, "nbdkit", append(more, "-f", "-U", socket, "memory", conformanceSize)...)
			waitForSocket(t, socket)
			return func() (net.Conn, error) { return net.Dial("unix", socket) }
		}
		return &conformance.Server{Dial: serve(), DialReadOnly: serve("-r")}
	}},
	{"qemu-nbd", func(t testing.TB) *conformance.Server {
		serve := func(more ...string) func() (net.Conn, error) {
			socket := filepath.Join(folder(t), "q")
			startTool(t, "qemu-nbd", append(more, "-t", "-f", "raw", "-e", "300", "--discard=unmap", "-k", socket, sparseFile(t, 6<<30))...)
			waitForSocket(t, socket)
			return func() (net.Conn, error) { return net.Dial("unix", socket) }
		}
		return &conformance.Server{Dial: serve(), DialReadOnly: serve("-r")}
	}},
	{"nbd-server", func(t testing.TB) *conformance.Server {
		here := folder(t)
		socket := filepath.Join(here, "n")
		text := fmt.Sprintf("[generic]\nport = %s\nlistenaddr = 127.0.0.1\nunixsock = %s\nallowlist = true\n", freePort(t), socket)
		for name, more := range map[string]string{"disk": "", "ro": "readonly = true\n"} {
			text += fmt.Sprintf("[%s]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n%s", name, sparseFile(t, 6<<30), more)
		}
		config := filepath.Join(here, "config")
		must(t, os.WriteFile(config, []byte(text), 0o600))
		startDaemon(t, filepath.Join(here, "pid"), "nbd-server", "-C", config)
		waitForSocket(t, socket)
		return &conformance.Server{Dial: func() (net.Conn, error) { return net.Dial("unix", socket) }, Export: "disk", ReadOnly: "ro"}
	}},
}

// startDaemon starts a program that leaves its parent, -p being the option for the
// file with its process id, and ends it with the test.
func startDaemon(t testing.TB, pidFile, name string, args ...string) {
	t.Helper()
	run(t, name, append(args, "-p", pidFile)...)
	var pid int
	eventually(t, name+" saying its process id", func() (any, bool) {
		text, err := os.ReadFile(pidFile)
		_, scanned := fmt.Sscan(string(text), &pid)
		return err, err == nil && scanned == nil && pid > 1
	})
	t.Cleanup(func() { killProcess(t, pid, syscall.SIGTERM) })
}

// dialer connects to the server of a URI.
func dialer(t testing.TB, uri string) func() (net.Conn, error) {
	t.Helper()
	u, err := url.Parse(uri)
	must(t, err)
	network, address := "tcp", u.Host
	if socket := u.Query().Get("socket"); socket != "" {
		network, address = "unix", socket
	}
	return func() (net.Conn, error) { return net.Dial(network, address) }
}

// clientTLS is how a client speaks TLS with the certificates of a folder.
func clientTLS(t testing.TB, folder, name string) *tls.Config {
	t.Helper()
	own, err := tls.LoadX509KeyPair(filepath.Join(folder, name, "client-cert.pem"), filepath.Join(folder, name, "client-key.pem"))
	must(t, err)
	authority, err := os.ReadFile(filepath.Join(folder, name, "ca-cert.pem"))
	must(t, err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("the authority has no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: roots, ServerName: "127.0.0.1"}
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
				for _, s := range conformance.Statements() {
					r := s.Ask(server)
					switch r.Verdict {
					case conformance.Pass:
						applied.Store(s.ID, true)
					case conformance.NotOffered:
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
	for _, s := range conformance.Statements() {
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
	statements := conformance.Statements()
	all := append(append([]entrant{}, ourEntrants...), otherEntrants...)
	verdicts := make([][]conformance.Result, len(all))
	for i, e := range all {
		server := e.start(t)
		for _, s := range statements {
			r := s.Ask(server)
			if verdicts[i] = append(verdicts[i], r); r.Verdict == conformance.Dead {
				server = e.start(t)
			}
			if bad := r.Verdict == conformance.Fail || r.Verdict == conformance.Dead; bad && i < len(ourEntrants) {
				t.Errorf("%s: %s: %s", e.name, s.ID, r.Why)
			} else if bad {
				t.Logf("%s: %s: %s", e.name, s.ID, r.Why)
			}
		}
	}
	t.Log("\n" + conformanceTable(all, statements, verdicts))
}

// conformanceTable is the table of all verdicts, with the sums below.
func conformanceTable(all []entrant, statements []conformance.Statement, verdicts [][]conformance.Result) string {
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
		line(s.ID, func(i int) string { return string(verdicts[i][k].Verdict) }, s.Text)
	}
	for _, v := range []conformance.Verdict{conformance.Pass, conformance.Fail, conformance.Dead, conformance.NotOffered} {
		line("", func(i int) string {
			n := 0
			for _, r := range verdicts[i] {
				if r.Verdict == v {
					n++
				}
			}
			return fmt.Sprint(n)
		}, string(v))
	}
	return b.String()
}
