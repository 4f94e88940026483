package rights

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

var answersFlag = flag.Int("rights.answers", 100, "answers of each kind whose times are measured")

// outcome is what a client gets of an export in a mode.
type outcome int

const (
	hidden  outcome = 1 + iota // as a name without export
	refused                    // not in this mode
	granted
)

// mode is how a client opens an export. NBD has no exclusive mode: a client
// that would write gets that.
type mode struct {
	name   string
	mode   wire.OpenMode
	writes bool
}

var modes = []mode{
	{"read", wire.OpenReadOnly, false}, {"write", wire.OpenReadWrite, true}, {"exclusive", wire.OpenExclusive, true},
}

// client is a connection of one identity at one listener.
type client interface {
	io.Closer

	// list returns the names that the client sees.
	list() ([]string, error)

	// open opens an export, once in the life of the connection.
	open(name string, m mode) (outcome, error)

	// refusal returns the bytes that answer an attempt to open an export that is
	// refused.
	refusal(name string) ([]byte, error)
}

// accessTo is what an identity may do with exports, by name: "list", and the
// modes, of which those that are refused are in brackets.
type accessTo map[string]string

// probe finds out what the client of dial may do.
func probe(dial func() (client, error), exports []string) (accessTo, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	listed, err := c.list()
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	got := make(accessTo)
	for _, name := range exports {
		var may []string
		if slices.Contains(listed, name) {
			may = append(may, "list")
		}
		for _, m := range modes {
			c, err := dial()
			if err != nil {
				return nil, err
			}
			o, err := c.open(name, m)
			if err = errors.Join(err, c.Close()); err != nil {
				return nil, err
			}
			switch o {
			case granted:
				may = append(may, m.name)
			case refused:
				may = append(may, "("+m.name+")")
			}
		}
		got[name] = strings.Join(may, " ")
	}
	return got, nil
}

const (
	all   = "list read write exclusive"
	reads = "list read (write) (exclusive)"
	none  = ""
	guest = 65534 // the user of the child
)

// table is what each identity gets of each export. Other is the user
// of the child, a guest.
var (
	exports = []export{
		{"open", nil, nil},
		{"clients", []string{"alice", "user:root"}, nil},
		{"readers", []string{"bob"}, []string{"alice", "user:root"}},
		{"others", []string{"bob"}, []string{"uid:65534"}},
		{"empty", []string{}, nil},
		{"empty readers", nil, []string{}},
	}
	table = map[string][]string{
		"none":    {all, none, none, none, none, none},
		"alice":   {all, all, reads, none, none, none},
		"mallory": {all, none, none, none, none, none},
		"root":    {all, all, reads, none, none, none},
		"other":   {none, none, none, reads, none, none},
	}
)

// names returns the names of the exports, and one that there is not.
func names() (list []string) {
	for _, e := range exports {
		list = append(list, e.name)
	}
	return append(list, "absent")
}

// TestTable: each identity gets of each export, at each listener that proves
// it, what the table says; so NBD and VIA give the same.
func TestTable(t *testing.T) {
	s := newSite(t, 47911, []uint32{guest}, exports...)
	overSHM, overRoCE := openNIC(t, shm.New(shm.Options{})), openNIC(t, roce.New(roce.Options{}))
	columns := []column{
		{"none", "nbd", s.here(func() (client, error) { return dialNBD("tcp", s.tcp, nil) })},
		{"alice", "nbd TLS", s.here(func() (client, error) { return dialNBD("tcp", s.tcp, s.clients["alice"]) })},
		{"mallory", "nbd TLS", s.here(func() (client, error) { return dialNBD("tcp", s.tcp, s.clients["mallory"]) })},
		{"root", "nbd+unix", s.here(func() (client, error) { return dialNBD("unix", s.unix(), nil) })},
		{"other", "nbd+unix", s.elsewhere("nbd", s.unix())},
		{"none", "via+roce", s.here(func() (client, error) { return dialVIA(overRoCE, s.roce) })},
		{"alice", "via+roce with certificates", s.here(func() (client, error) { return newSealedClient(overRoCE, s.sealed, s.clients["alice"]), nil })},
		{"mallory", "via+roce with certificates", s.here(func() (client, error) { return newSealedClient(overRoCE, s.sealed, s.clients["mallory"]), nil })},
		{"root", "via+shm", s.here(func() (client, error) { return dialVIA(overSHM, s.shm()) })},
		{"other", "via+shm", s.elsewhere("via", s.shm())},
	}
	for _, c := range append(columns, s.overVerbs()...) {
		t.Run(c.identity+" at "+c.listener, func(t *testing.T) {
			got, err := c.probe()
			must(t, err)
			for i, name := range names() {
				want := none
				if i < len(exports) {
					want = table[c.identity][i]
				}
				if got[name] != want {
					t.Errorf("%q: may %q, want %q", name, got[name], want)
				}
			}
		})
	}
	must(t, overSHM.Close())
	must(t, overRoCE.Close())
}

// column is an identity at a listener.
type column struct {
	identity, listener string
	probe              func() (accessTo, error)
}

// here returns a probe of this process.
func (s *site) here(dial func() (client, error)) func() (accessTo, error) {
	return func() (accessTo, error) { return probe(dial, names()) }
}

// elsewhere returns a probe of a process of another user.
func (s *site) elsewhere(protocol, path string) func() (accessTo, error) {
	return func() (got accessTo, err error) {
		binary := filepath.Join(s.folder, "probe")
		if err := copyFile("/proc/self/exe", binary); err != nil {
			return nil, err
		}
		cmd := exec.Command(binary)
		cmd.Env, cmd.Dir = []string{probeVariable + "=" + protocol + " " + path}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: guest, Gid: guest},
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, err
		}
		return got, json.Unmarshal(out, &got)
	}
}

// probeVariable makes this program a probe: its protocol and the path of the
// socket.
const probeVariable = "VIABLK_RIGHTS_PROBE"

func TestMain(m *testing.M) {
	if protocol, path, ok := strings.Cut(os.Getenv(probeVariable), " "); ok {
		probeAsOther(protocol, path)
		return
	}
	if os.Getuid() != 0 {
		panic("run the tests as root: only root can become another user")
	}
	goleak.VerifyTestMain(m)
}

// probeAsOther prints what this process may do.
func probeAsOther(protocol, path string) {
	dial := func() (client, error) { return dialNBD("unix", path, nil) }
	if protocol == "via" {
		nic, err := via.OpenNic(shm.New(shm.Options{}), "")
		if err != nil {
			panic(err)
		}
		dial = func() (client, error) { return dialVIA(nic, path) }
	}
	got, err := probe(dial, names())
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		panic(err)
	}
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// TestHiddenIsUnknown: an export that is not for the client is answered, byte
// for byte, as by a target that has none of the name. The medians of the times
// are logged, not judged.
func TestHiddenIsUnknown(t *testing.T) {
	open := export{"open", nil, nil}
	s := newSite(t, 47913, nil, open, export{"secret", []string{"bob"}, []string{"user:daemon"}})
	without := newSite(t, 47915, nil, open, export{"other", []string{"bob"}, nil})
	overSHM, overRoCE := openNIC(t, shm.New(shm.Options{})), openNIC(t, roce.New(roce.Options{}))
	for name, dial := range map[string]func(s *site) (client, error){
		"nbd":      func(s *site) (client, error) { return dialNBD("tcp", s.tcp, nil) },
		"nbd TLS":  func(s *site) (client, error) { return dialNBD("tcp", s.tcp, s.clients["mallory"]) },
		"nbd+unix": func(s *site) (client, error) { return dialNBD("unix", s.unix(), nil) },
		"via+shm":  func(s *site) (client, error) { return dialVIA(overSHM, s.shm()) },
		"via+roce": func(s *site) (client, error) { return dialVIA(overRoCE, s.roce) },
	} {
		t.Run(name, func(t *testing.T) {
			has, err := dial(s)
			must(t, err)
			defer func() { must(t, has.Close()) }()
			hasNot, err := dial(without)
			must(t, err)
			defer func() { must(t, hasNot.Close()) }()
			got, _ := ask(t, has, "secret")
			if want, _ := ask(t, hasNot, "secret"); len(want) == 0 || !bytes.Equal(got, want) {
				t.Errorf("answers differ:\n%q\n%q", got, want)
			}
			var forHidden, forUnknown []time.Duration
			for range *answersFlag {
				_, one := ask(t, has, "secret")
				_, other := ask(t, has, "absent")
				forHidden, forUnknown = append(forHidden, one), append(forUnknown, other)
			}
			t.Logf("medians of %d answers: hidden %v, unknown %v", *answersFlag, median(forHidden), median(forUnknown))
		})
	}
	must(t, overSHM.Close())
	must(t, overRoCE.Close())
}

// ask returns the answer of a refusal, and its time.
func ask(t *testing.T, c client, name string) ([]byte, time.Duration) {
	t.Helper()
	start := time.Now()
	raw, err := c.refusal(name)
	must(t, err)
	return raw, time.Since(start)
}

func median(times []time.Duration) time.Duration {
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times[len(times)/2]
}
