package initiator_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// poor is a provider whose devices have other limits, and refuse what peers
// could reach but for bounce memory.
type poor struct {
	via.Provider
	limit  func(*via.Limits)
	refuse error
}

func (p poor) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return poorAdapter{a, p}, err
}

type poorAdapter struct {
	via.Adapter
	by poor
}

func (a poorAdapter) Limits() via.Limits {
	l := a.Adapter.Limits()
	a.by.limit(&l)
	return l
}

func (a poorAdapter) Register(m *via.Memory) error {
	if a.by.refuse != nil && m.RemoteRead() && len(m.Bytes()) != poorPool {
		return a.by.refuse
	}
	return a.Adapter.Register(m)
}

const poorPool = 128 << 10

// A disk is attached and works however little a NIC registers, and whatever it
// says when it refuses.
func TestReasonsNotToRegister(t *testing.T) {
	same := func(*via.Limits) {}
	rows := map[string]poor{
		"no room for a granule": {limit: func(l *via.Limits) { l.MaxRegisterBlockBytes = 1<<20 - 1 }},
		"no room beside a pool": {limit: func(l *via.Limits) { l.MaxRegisterBytes = 1<<20 - 1 }},
	}
	for _, errno := range []error{via.ErrResource, syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM, syscall.EFAULT} {
		rows[fmt.Sprint(errno)] = poor{limit: same, refuse: errno}
	}
	for name, p := range rows {
		for _, mode := range []regcache.CopyMode{regcache.CopyAuto, regcache.CopyZero} {
			t.Run(fmt.Sprintf("%s, %s", name, mode), func(t *testing.T) {
				p.Provider = shm.New(shm.Options{})
				nic, err := via.OpenNic(p, "")
				must(t, err)
				defer func() { must(t, nic.Close()) }()
				r := newRemote(t, target.Config{}, "memory:4MiB")
				d := r.dial(t, "a", func(c *initiator.Config) {
					c.NIC, c.CopyMode, c.PoolBytes, c.Depth = nic, mode, poorPool, 16
				})
				buf, err := d.Alloc(100000)
				must(t, err)
				for i := range 20 {
					roundTrip(t, d, buf, i)
				}
				waitFor(t, "the counters", func() bool { return d.Status().Stats.BytesBounced > 0 })
				st := d.Status()
				if st.Stats.Choice.BytesZeroCopied != 0 || (st.Copy.Off != "") != (st.Copy.Cache == nil) {
					t.Errorf("%+v, %+v", st.Stats.Choice, st.Copy)
				}
				must(t, d.Free(buf))
				must(t, d.Close())
			})
		}
	}
}

// roundTrip writes a pattern at the i-th KiB of a disk and reads it back.
func roundTrip(t *testing.T, d *initiator.Device, buf []byte, i int) {
	t.Helper()
	pattern(buf, byte(i))
	want := bytes.Clone(buf)
	_, err := d.WriteAt(buf, int64(i)<<10)
	must(t, err)
	clear(buf)
	_, err = d.ReadAt(buf, int64(i)<<10)
	must(t, err)
	if !bytes.Equal(buf, want) {
		t.Fatal("other data")
	}
}
