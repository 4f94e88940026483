package session

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

var (
	hogPlaces = flag.Int("session.places", 64, "connections of the target of TestIdentityThatTakesAllPlaces")
	hogLogins = flag.Int("session.logins", 200, "sessions of TestIdentityThatLogsInAgainAndAgain")
)

// hog is an initiator in this process that dials a target of another.
type hog struct {
	nic     *via.NIC
	host    string
	folder  string
	devices []*initiator.Device
}

// newHog starts a target for a number of connections, which wants certificates.
func newHog(t *testing.T, host string, places int) (*hog, *testbed.Process) {
	t.Helper()
	folder := testbed.Certificates(t, "alice", "mallory")
	p := testbed.StartBinary(t, testbed.Program(t), "target", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", "via+roce://"+host+"/", "--security", "require", "--certificates", filepath.Join(folder, "server"),
		"--connections", fmt.Sprint(places), "--export", "disk=memory:1MiB")
	nic, err := via.OpenNic(roce.New(roce.Options{}), "")
	testbed.Must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	h := &hog{nic: nic, host: host, folder: folder}
	t.Cleanup(func() {
		for _, d := range h.devices {
			testbed.Must(t, d.Close())
		}
		testbed.Must(t, nic.Close())
	})
	return h, p
}

// dial attaches the disk as an identity.
func (h *hog) dial(name string) (*initiator.Device, error) {
	return initiator.Dial(context.Background(), initiator.Config{
		NIC: h.nic, Host: h.host, Export: "disk", ReadOnly: true, Timeout: testbed.ToolLimit,
		Security: func() (handshake.Config, error) {
			tls, err := pki.ClientConfig(filepath.Join(h.folder, name), "localhost", true)
			return handshake.Config{TLS: tls}, err
		},
	})
}

// TestIdentityThatTakesAllPlaces: an identity that opens sessions until it is
// refused has half of the target's connections, and another identity at the
// same address connects at its first attempt.
func TestIdentityThatTakesAllPlaces(t *testing.T) {
	h, p := newHog(t, "127.77.60.1", *hogPlaces)
	for len(h.devices) <= *hogPlaces {
		d, err := h.dial("mallory")
		if err != nil {
			t.Logf("mallory has %d sessions: %v", len(h.devices), err)
			break
		}
		h.devices = append(h.devices, d)
	}
	if n := len(h.devices); n != *hogPlaces/2 {
		t.Errorf("one identity has %d of %d connections", n, *hogPlaces)
	}
	at := time.Now()
	alice, err := h.dial("alice")
	testbed.Must(t, err)
	t.Logf("alice has a session after %v", time.Since(at))
	h.devices = append(h.devices, alice)
	_, err = alice.ReadAt(make([]byte, 512), 0)
	testbed.Must(t, err)
	if st := p.Status().Targets[0]; st.Refused != 0 || st.Connections < *hogPlaces/2+1 {
		t.Errorf("%d connections, %d refused before they said who they are", st.Connections, st.Refused)
	}
}

// TestIdentityThatLogsInAgainAndAgain: each session logs that it logged in and
// opened the export; an identity has 32 such lines at once and one a second,
// and all unauthenticated peers have one a second.
func TestIdentityThatLogsInAgainAndAgain(t *testing.T) {
	h, p := newHog(t, "127.77.61.1", 64)
	lines, began := strings.Count(p.Stderr.String(), "\n"), time.Now()
	for range *hogLogins {
		d, err := h.dial("mallory")
		testbed.Must(t, err)
		testbed.Must(t, d.Close())
	}
	testbed.Eventually(t, "the end of the sessions", func() (any, bool) {
		n := p.Status().Targets[0].Connections
		return n, n == 0
	})
	seconds := int(time.Since(began).Seconds()) + 1
	n := strings.Count(p.Stderr.String(), "\n") - lines
	t.Logf("%d lines of %d sessions in %d s", n, *hogLogins, seconds)
	if n < 32 || n > 32+2*seconds {
		t.Errorf("%d lines of %d sessions in %d s:\n%s", n, *hogLogins, seconds, p.Stderr.String())
	}
}
