package via

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
)

// scriptedNames is a name service of one name that fails as a test says.
type scriptedNames struct {
	hosts []string
	err   error
}

func (s scriptedNames) AddressesOf(context.Context, string) ([]string, error) { return s.hosts, s.err }

func (s scriptedNames) NameOf(context.Context, string) (string, error) { return "name", s.err }

// The name service's own error and the return code are both there to be tested.
func TestNameServiceErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		wants []error
	}{
		{"bare", fs.ErrPermission, []error{ErrNameService, fs.ErrPermission}},
		{"context", context.DeadlineExceeded, []error{ErrNameService, context.DeadlineExceeded}},
		{"wrapped", ErrNameService, []error{ErrNameService}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, ReliableDelivery)
			b.must(b.nic.InitNameService(scriptedNames{err: c.err}))
			_, byName := b.nic.HostByName(context.Background(), "disk", 0)
			_, byAddr := b.nic.HostByAddr(context.Background(), "/disk")
			for _, want := range c.wants {
				b.wants(byName, want, "host by name")
				b.wants(byAddr, want, "host by address")
			}
			for _, err := range []error{byName, byAddr} {
				if strings.Count(err.Error(), ErrNameService.Error()) != 1 || !strings.Contains(err.Error(), "disk") {
					t.Errorf("error %q does not say once what failed", err)
				}
			}
		})
	}
}

// Queries race with the service's coming, going and the NIC's end: each gets a
// whole answer or one of the documented errors.
func TestNameServiceConcurrently(t *testing.T) {
	nic, err := OpenNic(newScripted(), "")
	if err != nil {
		t.Fatal(err)
	}
	var queries, owner sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		queries.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				host, err := nic.HostByName(context.Background(), "x", 1)
				if err == nil && host != "b" || err != nil && !errors.Is(err, ErrNameService) && !errors.Is(err, ErrInvalidParameter) {
					t.Errorf("host %q, error %v", host, err)
					return
				}
			}
		})
	}
	inits := make([]int, 2)
	for i := range inits {
		owner.Go(func() {
			for range 500 {
				if nic.InitNameService(scriptedNames{hosts: []string{"a", "b"}}) != nil {
					continue // the other one's is there
				}
				inits[i]++
				if err := nic.ShutdownNameService(); err != nil {
					t.Errorf("shut down what was initialised: %v", err)
				}
			}
		})
	}
	owner.Wait()
	if inits[0]+inits[1] == 0 {
		t.Error("no init succeeded")
	}
	if err := nic.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	queries.Wait()
}
