package via_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/viatest/loopback"
)

// objects are what a consumer holds: an open NIC and one of each kind on it.
type objects struct {
	nic      *via.NIC
	tag      via.Ptag
	arena    *via.Arena
	mem      *via.Memory
	desc     *via.Descriptor
	cq       *via.CQ
	vi       *via.VI
	listener *via.Listener
	request  *via.ConnRequest
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open makes one of everything; the request is that of a VI which waits for the
// answer.
func open(t *testing.T, net *loopback.Network) *objects {
	t.Helper()
	o := &objects{}
	var err error
	o.nic, err = via.OpenNic(net, "")
	ok(t, err)
	o.tag, err = o.nic.CreatePtag()
	ok(t, err)
	o.arena, err = o.nic.NewArena(4096)
	ok(t, err)
	o.mem, err = o.nic.RegisterMem(o.arena.Bytes(), via.MemAttributes{Ptag: o.tag})
	ok(t, err)
	o.desc, err = o.mem.NewDescriptor(0, 64)
	ok(t, err)
	o.cq, err = o.nic.CreateCQ(2)
	ok(t, err)
	o.vi = o.newVI(t)
	addr := via.Address{Host: fmt.Sprintf("host of %p", o), Discriminator: "x"}
	o.listener, err = o.nic.Listen(addr)
	ok(t, err)
	caller := o.newVI(t)
	answered := make(chan error, 1)
	go func() {
		_, err := caller.Connect(context.Background(), addr)
		answered <- err
	}()
	o.request, err = o.listener.Wait(context.Background())
	ok(t, err)
	t.Cleanup(func() {
		if err := <-answered; !errors.Is(err, via.ErrReject) {
			t.Errorf("a rejected request: %v", err)
		}
	})
	t.Cleanup(func() { _ = o.request.Reject() }) // it may be answered
	return o
}

func (o *objects) newVI(t *testing.T) *via.VI {
	t.Helper()
	vi, err := o.nic.CreateVi(
		via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: o.tag},
		via.ViConfig{SendCQ: o.cq, SendDepth: 1, RecvDepth: 1})
	ok(t, err)
	return vi
}

// destroy destroys everything but the NIC.
func (o *objects) destroy(t *testing.T) {
	t.Helper()
	ok(t, o.request.Reject())
	ok(t, o.listener.Close())
	ok(t, o.vi.Destroy())
	ok(t, o.mem.Deregister())
	ok(t, o.arena.Close())
	cq, err := o.nic.CreateCQ(2) // its own is the caller's, too
	ok(t, err)
	ok(t, cq.Destroy())
	o.cq = cq
}

// argument returns something that a call with a proper object would take.
func (o *objects) argument(t *testing.T, kind reflect.Type) reflect.Value {
	t.Helper()
	for _, v := range []any{
		1, byte(1), uint32(1), uint64(1), "x", time.Millisecond, make([]byte, 64), make([]via.Completion, 1),
		[]*via.Memory{o.mem},
		o.tag, o.vi, o.desc,
		via.OpSend, &via.Hosts{},
		via.Address{Host: "a", Discriminator: "x"},
		via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: o.tag},
		via.ViConfig{SendDepth: 1, RecvDepth: 1},
		via.MemAttributes{Ptag: o.tag},
		context.Background(),
		func(via.AsyncError) {}, func(*via.VI, *via.Descriptor) {}, func(*via.VI, bool) {},
	} {
		if x := reflect.ValueOf(v); x.Type().AssignableTo(kind) && (kind.Kind() != reflect.Interface || kind.NumMethod() > 0) {
			return x
		}
	}
	t.Fatalf("no argument of type %v", kind)
	return reflect.Value{}
}

// says are results that mean that there is no such object; others are zero.
var says = map[string][]any{
	"NIC.Agent": nil, "NIC.Closed": {true}, "VI.Destroyed": {true}, "VI.QueuesEmpty": {true, true},
	"CQ.Arm": {true}, "CQ.ArmEdge": {true}, "CQ.FD": {-1},
}

// remembered are methods that tell of what is gone what it was, or take it as
// done.
var remembered = map[string]bool{
	"NIC.Name": true, "NIC.Limits": true, "VI.NIC": true, "VI.Attributes": true, "Listener.Addr": true, "Listener.Close": true,
	"ConnRequest.Attributes": true, "ConnRequest.RemoteHost": true, "ConnRequest.Origin": true,
	"Descriptor.Memory": true,
	"Arena.Bytes":       true, "Arena.Memory": true, "Memory.Bytes": true, "Memory.Handle": true, "Memory.Addr": true,
	"Memory.Arena": true, "Memory.Tag": true, "Memory.RemoteWrite": true, "Memory.RemoteRead": true, "Memory.Attributes": true,
}

// refuses calls every method of an object that is not there. A result that is
// an error is ErrInvalidParameter; nothing panics.
func refuses(t *testing.T, object any, argument func(*testing.T, reflect.Type) reflect.Value, gone bool) {
	t.Helper()
	v := reflect.ValueOf(object)
	for i := range v.NumMethod() {
		name := v.Type().Elem().Name() + "." + v.Type().Method(i).Name
		t.Run(name, func(t *testing.T) {
			m := v.Method(i)
			args := make([]reflect.Value, m.Type().NumIn())
			for k := range args {
				args[k] = argument(t, m.Type().In(k))
			}
			out := m.Call(args)
			if gone && remembered[name] {
				return
			}
			want, special := says[name]
			for k, r := range out {
				switch err, isError := r.Interface().(error); {
				case isError && errors.Is(err, via.ErrInvalidParameter):
				case m.Type().Out(k) == reflect.TypeFor[error]():
					t.Errorf("error is %v", r)
				case special && want == nil:
				case special && r.Interface() != want[k]:
					t.Errorf("result %d is %v, want %v", k, r, want[k])
				case !special && !r.IsZero():
					t.Errorf("result %d is %v", k, r)
				}
			}
		})
	}
}

// Every method of an object that is nil, or that no call made, is refused or
// does nothing, whatever its arguments are.
func TestNoObject(t *testing.T) {
	o := open(t, loopback.New())
	nothing := func(t *testing.T, kind reflect.Type) reflect.Value {
		if kind == reflect.TypeFor[context.Context]() {
			return reflect.ValueOf(context.Background())
		}
		return reflect.Zero(kind)
	}
	for _, c := range []struct{ null, zero any }{
		{(*via.NIC)(nil), new(via.NIC)},
		{(*via.VI)(nil), new(via.VI)},
		{(*via.CQ)(nil), new(via.CQ)},
		{(*via.Memory)(nil), new(via.Memory)},
		{(*via.Arena)(nil), new(via.Arena)},
		{(*via.Descriptor)(nil), new(via.Descriptor)},
		{(*via.Listener)(nil), new(via.Listener)},
		{(*via.ConnRequest)(nil), new(via.ConnRequest)},
	} {
		for name, object := range map[string]any{"nil": c.null, "zero": c.zero} {
			t.Run(name, func(t *testing.T) {
				refuses(t, object, nothing, false)
				refuses(t, object, o.argument, false)
			})
		}
	}
}

// The same of objects that were destroyed, on an open NIC and after it was
// closed.
func TestGoneObject(t *testing.T) {
	net := loopback.New()
	o, other := open(t, net), open(t, net)
	o.destroy(t)
	for _, object := range []any{o.vi, o.cq, o.mem, o.arena, o.desc, o.listener, o.request} {
		refuses(t, object, o.argument, true)
	}
	closed, err := via.OpenNic(net, "")
	ok(t, err)
	ok(t, closed.Close())
	refuses(t, closed, other.argument, true)
}

// Objects counts what keeps a NIC open, and nothing else.
func TestObjectsKeepNICOpen(t *testing.T) {
	nic, err := via.OpenNic(loopback.New(), "")
	ok(t, err)
	tag, err := nic.CreatePtag()
	ok(t, err)
	arena, err := nic.NewArena(4096)
	ok(t, err)
	has := func(want via.Objects) {
		t.Helper()
		if got := nic.Objects(); got != want {
			t.Fatalf("objects are %+v, want %+v", got, want)
		}
		if want != (via.Objects{}) {
			if err := nic.Close(); !errors.Is(err, via.ErrResource) || nic.Closed() {
				t.Fatalf("close with %+v: %v, closed: %v", want, err, nic.Closed())
			}
		}
	}
	has(via.Objects{})
	mem, err := nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: tag})
	ok(t, err)
	has(via.Objects{Regions: 1})
	cq, err := nic.CreateCQ(1)
	ok(t, err)
	vi, err := nic.CreateVi(via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: tag}, via.ViConfig{SendCQ: cq, SendDepth: 1, RecvDepth: 1})
	ok(t, err)
	has(via.Objects{Regions: 1, CQs: 2, VIs: 1})
	first, err := nic.Listen(via.Address{Host: "h", Discriminator: "a"})
	ok(t, err)
	second, err := nic.Listen(via.Address{Host: "h", Discriminator: "b"})
	ok(t, err)
	has(via.Objects{Regions: 1, CQs: 2, VIs: 1, Addresses: 2})
	ok(t, first.Close())
	ok(t, vi.Destroy())
	ok(t, mem.Deregister())
	has(via.Objects{CQs: 1, Addresses: 1})
	ok(t, cq.Destroy())
	ok(t, second.Close())
	has(via.Objects{})
	ok(t, nic.Close())
	if !nic.Closed() {
		t.Fatal("a closed NIC says that it is open")
	}
}
