//go:build suites

package suites

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// testerLimit bounds a run of nbd-tester-client.
const testerLimit = 10 * time.Minute

// nbdSource returns a folder with nbd-tester-client and nbd-client. Two things
// differ from what its own build makes: the client speaks TLS 1.3 in place of
// 1.2, which viablk does not speak, and can start a server on a socket, which
// works only if it is built like nbd-server.
func nbdSource(t *testing.T) string {
	return sources(t, "nbd", newest, nil, func(t *testing.T, folder string) {
		path := filepath.Join(folder, "crypto-gnutls.c")
		text, err := os.ReadFile(path)
		testbed.Must(t, err)
		const old = `"NORMAL:-VERS-TLS-ALL:+VERS-TLS1.2"`
		if strings.Count(string(text), old) != 1 {
			t.Fatalf("%s does not choose the version of TLS as it used to", path)
		}
		testbed.Must(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, `"NORMAL:-VERS-TLS-ALL:+VERS-TLS1.3"`, 1)), 0o600))
		// The configuration insists on a tool for manual pages, which are not
		// made.
		succeed(t, buildLimit, folder, nil, "./configure", "-q", "ac_cv_prog_DB2M=true", "CPPFLAGS=-DISSERVER", "CFLAGS=-O1")
		succeed(t, buildLimit, folder, nil, "make", "-s", "-C", "tests/run", "nbd-tester-client")
		succeed(t, buildLimit, folder, nil, "make", "-s", "nbd-client")
	})
}

// testerCases are the cases of nbd's tests/run/simple_test by their names
// there: what nbd-tester-client is told. HERE is where the server is, TLS the
// client's certificates, RUN the folder.
var testerCases = map[string]struct {
	args   []string
	size   int64
	disk   string // the options of the file
	unix   bool
	secure bool
	before func(t *testing.T, source, uri string)
}{
	"cfg1":          {args: []string{"HERE"}},
	"cfgnew":        {args: []string{"HERE"}},
	"cfgsize":       {args: []string{"-o", "HERE"}},
	"write":         {args: []string{"-w", "HERE"}},
	"flush":         {args: []string{"-w", "-f", "HERE"}},
	"rowrite":       {args: []string{"-w", "-F", "HERE"}, disk: "?readonly=1"},
	"unix":          {args: []string{"HERE"}, unix: true},
	"handshake":     {args: []string{"-h", "HERE"}},
	"list":          {args: []string{"HERE"}, before: listExports},
	"integrity":     {args: []string{"-i", "-t", "RUN/integrity-test.tr", "HERE"}, size: 50 << 20},
	"integrityhuge": {args: []string{"-i", "-t", "RUN/integrityhuge-test.tr", "HERE"}, size: 50 << 20},
	"tls":           {args: []string{"-i", "-t", "RUN/integrity-test.tr", "TLS", "HERE"}, size: 50 << 20, secure: true},
	"tlshuge":       {args: []string{"-i", "-t", "RUN/integrityhuge-test.tr", "TLS", "-H", "localhost", "HERE"}, size: 50 << 20, secure: true},
	"tlswrongcert": {args: []string{
		"-t", "RUN/integrity-test.tr", "-C", "RUN/certs/selfsigned-cert.pem", "-K", "RUN/certs/selfsigned-key.pem", "-F", "HERE",
	}, secure: true},
}

// testerReasons are why other cases do not apply.
var testerReasons = map[string]string{
	"dirconfig": "it is about how nbd-server finds its configuration; to the client it is cfg1",
	"tree":      "it is about nbd-server's files of pages; to the client it is write",
	"rotree":    "it is about nbd-server's files of pages; to the client it is rowrite",
}

// TestTester runs nbd-tester-client in all its modes, against a target and
// through the whole chain.
func TestTester(t *testing.T) {
	source := nbdSource(t)
	list, err := os.ReadFile(filepath.Join(source, "tests/run/Makefile.am"))
	testbed.Must(t, err)
	found := regexp.MustCompile(`(?m)^TESTS = ((?:.*\\\n)*.*)$`).FindSubmatch(list)
	if found == nil {
		t.Fatalf("no list of cases in:\n%s", list)
	}
	names := strings.Fields(strings.ReplaceAll(string(found[1]), "\\\n", " "))
	inEachWay(t, "nbd-tester-client", names, testerReasons, func(t *testing.T, w way, name string) {
		switch name {
		case "inetd":
			testInetd(t, source, w)
		case "cfgmulti":
			testSeveral(t, source, w)
		default:
			testTester(t, source, w, name)
		}
	})
}

// testTester runs one of testerCases.
func testTester(t *testing.T, source string, w way, name string) {
	c, known := testerCases[name]
	if !known {
		t.Fatalf("the suite has a case %s that is new: say what it is about", name)
	}
	runFolder := filepath.Join(source, "tests/run")
	certificates := filepath.Join(runFolder, "certs")
	scheme, at, options := "nbd", "://localhost:0/", []string(nil)
	if c.unix {
		scheme, at = "nbd+unix", ":///?socket="+filepath.Join(testbed.Folder(t), "s")
	}
	if c.secure {
		// The suite's key is readable for all, which viablk refuses.
		testbed.Must(t, os.Chmod(filepath.Join(certificates, "server-key.pem"), 0o600))
		scheme, options = "nbds", []string{"--tls", "require", "--tls-certificates", certificates}
	}
	if c.disk != "" && w.name == "chain" {
		options = append(options, "--read-only")
	}
	s, _ := w.serve(t, file(t, "export1", max(c.size, 4<<20), c.disk), scheme+at, options...)
	uri := s.uri(t, "export1", scheme)
	if c.before != nil {
		c.before(t, source, uri)
	}
	args := []string{"-N", "export1"}
	for _, arg := range c.args {
		switch arg {
		case "HERE":
			args = append(args, here(t, uri)...)
		case "TLS":
			args = append(
				args, "-C", certificates+"/client-cert.pem", "-K", certificates+"/client-key.pem", "-A", certificates+"/ca-cert.pem",
			)
		default:
			args = append(args, strings.Replace(arg, "RUN", runFolder, 1))
		}
	}
	succeed(t, testerLimit, runFolder, nil, "./nbd-tester-client", args...)
}

// here is how nbd-tester-client is told where a server is.
func here(t *testing.T, uri string) []string {
	if _, path, found := strings.Cut(uri, "?socket="); found {
		return []string{"-u", path}
	}
	_, port := hostPort(t, uri)
	return []string{"localhost", port}
}

// listExports has nbd-client list the exports.
func listExports(t *testing.T, source, uri string) {
	out := succeed(t, testerLimit, source, nil, "./nbd-client", append([]string{"-l"}, here(t, uri)...)...)
	if !regexp.MustCompile(`(?m)^export1(: .*)?$`).MatchString(out) {
		t.Errorf("nbd-client -l: %s", out)
	}
}

// testInetd is inetd: the client starts the server with its socket as standard
// input, and that alone, from which a shell makes standard output too.
func testInetd(t *testing.T, source string, w way) {
	_, command := w.serve(t, file(t, "export1", 4<<20, ""), "")
	args := append([]string{"-N", "export1", "-I", "--", "/bin/sh", "-c", `exec "$@" >&0`, "-"}, command...)
	succeed(t, testerLimit, filepath.Join(source, "tests/run"), nil, "./nbd-tester-client", args...)
}

// testSeveral is cfgmulti: two exports. Initiators serve one each.
func testSeveral(t *testing.T, source string, w way) {
	first, second := file(t, "export1", 4<<20, ""), file(t, "export2", 4<<20, "")
	a, _ := w.serve(t, first, "nbd://localhost:0/", exportOption(w, second)...)
	servers := map[string]*server{"export1": a, "export2": a}
	if w.name == "chain" {
		servers["export2"], _ = w.serve(t, second, "nbd://localhost:0/")
	}
	for name, s := range servers {
		args := append([]string{"-N", name}, here(t, s.uri(t, name, "nbd"))...)
		succeed(t, testerLimit, filepath.Join(source, "tests/run"), nil, "./nbd-tester-client", args...)
	}
}

// exportOption adds a disk to a target.
func exportOption(w way, d disk) []string {
	if w.name != "target" {
		return nil
	}
	return []string{"--export", d.name + "=" + d.spec}
}
