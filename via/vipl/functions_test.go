package vipl_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/viatest/loopback"
	"github.com/viablk/viablk/via/vipl"
)

// all are the functions of VIPL, in the order of the Developer's Guide's
// header.
var all = []any{
	vipl.VipOpenNic, vipl.VipCloseNic,
	vipl.VipCreateVi, vipl.VipDestroyVi,
	vipl.VipConnectWait, vipl.VipConnectAccept, vipl.VipConnectReject, vipl.VipConnectRequest, vipl.VipDisconnect,
	vipl.VipConnectPeerRequest, vipl.VipConnectPeerDone, vipl.VipConnectPeerWait,
	vipl.VipCreatePtag, vipl.VipDestroyPtag, vipl.VipRegisterMem, vipl.VipDeregisterMem,
	vipl.VipPostSend, vipl.VipSendDone, vipl.VipSendWait, vipl.VipSendNotify,
	vipl.VipPostRecv, vipl.VipRecvDone, vipl.VipRecvWait, vipl.VipRecvNotify,
	vipl.VipCQDone, vipl.VipCQWait, vipl.VipCQNotify, vipl.VipCreateCQ, vipl.VipDestroyCQ, vipl.VipResizeCQ,
	vipl.VipQueryNic, vipl.VipSetViAttributes, vipl.VipQueryVi, vipl.VipSetMemAttributes, vipl.VipQueryMem,
	vipl.VipQuerySystemManagementInfo, vipl.VipErrorCallback,
	vipl.VipNSInit, vipl.VipNSGetHostByName, vipl.VipNSGetHostByAddr, vipl.VipNSShutdown,
}

// functions returns the names of the package's exported functions, sorted.
func functions(t *testing.T) []string {
	t.Helper()
	var names []string
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() {
				names = append(names, fn.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// The package exports VIPL's 41 functions and no other.
func TestFunctions(t *testing.T) {
	want := strings.Fields(`
		VipCQDone VipCQNotify VipCQWait VipCloseNic VipConnectAccept VipConnectPeerDone
		VipConnectPeerRequest VipConnectPeerWait VipConnectReject VipConnectRequest
		VipConnectWait VipCreateCQ VipCreatePtag VipCreateVi VipDeregisterMem
		VipDestroyCQ VipDestroyPtag VipDestroyVi VipDisconnect VipErrorCallback
		VipNSGetHostByAddr VipNSGetHostByName VipNSInit VipNSShutdown VipOpenNic
		VipPostRecv VipPostSend VipQueryMem VipQueryNic VipQuerySystemManagementInfo
		VipQueryVi VipRecvDone VipRecvNotify VipRecvWait VipRegisterMem VipResizeCQ
		VipSendDone VipSendNotify VipSendWait VipSetMemAttributes VipSetViAttributes`)
	if got := functions(t); !slices.Equal(got, want) || len(got) != 41 || len(all) != 41 {
		t.Errorf("%d functions %v, want %v", len(got), got, want)
	}
}

// Nil arguments are answered with a code: every function is called with
// nothing, and with every pointer but one.
func TestNils(t *testing.T) {
	for i, f := range all {
		v := reflect.ValueOf(f)
		args := make([]reflect.Value, v.Type().NumIn())
		for k := range args {
			args[k] = reflect.Zero(v.Type().In(k))
		}
		out := v.Call(args)
		if r := out[len(out)-1].Interface(); r != vipl.Return(via.ErrInvalidParameter) {
			t.Errorf("function %d, %v, of nothing: %v", i, v.Type(), r)
		}
		for k, o := range out[:len(out)-1] {
			if !o.IsZero() {
				t.Errorf("function %d, %v, of nothing: result %d is %v", i, v.Type(), k, o)
			}
		}
	}
}

func TestNilArguments(t *testing.T) {
	s := &session{t: t, net: loopback.New(), done: make(map[string]bool)}
	e := s.open()
	d := s.desc(e, 0, via.OpSend)
	other, r := vipl.VipRegisterMem(e.nic, e.arena.Bytes()[:64], &via.MemAttributes{Ptag: e.tag})
	s.ok("VipRegisterMem", r)
	codes := map[string]vipl.Return{
		"post no descriptor":                   vipl.VipPostSend(e.vi, nil, e.mem),
		"post in no region":                    vipl.VipPostSend(e.vi, d, nil),
		"post in another region":               vipl.VipPostSend(e.vi, d, other),
		"post no receive":                      vipl.VipPostRecv(e.vi, nil, e.mem),
		"post a receive in no region":          vipl.VipPostRecv(e.vi, d, nil),
		"set no attributes":                    vipl.VipSetViAttributes(e.vi, nil),
		"set no memory attributes":             vipl.VipSetMemAttributes(e.nic, e.mem.Addr(), e.mem, nil),
		"peer request without an address":      vipl.VipConnectPeerRequest(e.vi, &clientAddr, nil, 1),
		"call in no time":                      vipl.VipConnectPeerRequest(e.vi, &clientAddr, &hostAddr, 0),
		"accept without a vi":                  vipl.VipConnectAccept(&via.ConnRequest{}, nil),
		"notify of sends without a handler":    vipl.VipSendNotify(e.vi, nil, nil),
		"notify of receives without a handler": vipl.VipRecvNotify(e.vi, nil, nil),
		"a nil name service":                   vipl.VipNSInit(e.nic, nil),
		"what has no address to a name":        second(vipl.VipNSGetHostByAddr(e.nic, nil)),
		"connect without an address":           second(vipl.VipConnectRequest(e.vi, &clientAddr, nil, 1)),
		"connect in no time":                   second(vipl.VipConnectRequest(e.vi, &clientAddr, &hostAddr, 0)),
		"another kind of information":          second(vipl.VipQuerySystemManagementInfo(e.nic, 2, 1)),
		"no hops":                              second(vipl.VipQuerySystemManagementInfo(e.nic, vipl.SmiAutodiscovery, 0)),
		"register with no attributes":          second(vipl.VipRegisterMem(e.nic, e.arena.Bytes(), nil)),
		"create with no attributes":            second(vipl.VipCreateVi(e.nic, nil, nil, nil)),
	}
	for name, r := range codes {
		if r != vipl.Return(via.ErrInvalidParameter) {
			t.Errorf("%s: %v", name, r)
		}
	}
	s.ok("VipDestroyVi", vipl.VipDestroyVi(e.vi))
	s.ok("VipDeregisterMem", vipl.VipDeregisterMem(e.nic, other.Addr(), other))
	s.ok("VipDeregisterMem", vipl.VipDeregisterMem(e.nic, e.mem.Addr(), e.mem))
	s.ok("VipCloseNic", vipl.VipCloseNic(e.nic))
}

// A NIC that cannot be closed stays what it is: requests at an address that it
// waited at are kept for the next wait.
func TestRefusedClose(t *testing.T) {
	s := &session{t: t, net: loopback.New(), done: make(map[string]bool)}
	s.client, s.host = s.open(), s.open()
	if _, _, _, r := vipl.VipConnectWait(s.host.nic, &hostAddr, 0); r != vipl.Return(via.ErrTimeout) {
		t.Fatalf("wait without a caller: %v", r)
	}
	if r := vipl.VipCloseNic(s.host.nic); r != vipl.Return(via.ErrResource) {
		t.Fatalf("close a nic in use: %v", r)
	}
	answered := make(chan vipl.Return, 1)
	go func() {
		_, r := vipl.VipConnectRequest(s.client.vi, &clientAddr, &hostAddr, vipl.Infinite)
		answered <- r
	}()
	_, _, conn, r := vipl.VipConnectWait(s.host.nic, &hostAddr, vipl.Infinite)
	s.ok("VipConnectWait", r)
	s.ok("VipConnectReject", vipl.VipConnectReject(conn))
	if r := <-answered; r != vipl.Return(via.ErrReject) {
		t.Errorf("a request after a refused close: %v", r)
	}
	for _, e := range []end{s.client, s.host} {
		s.ok("VipDestroyVi", vipl.VipDestroyVi(e.vi))
		s.ok("VipDeregisterMem", vipl.VipDeregisterMem(e.nic, e.mem.Addr(), e.mem))
		s.ok("VipCloseNic", vipl.VipCloseNic(e.nic))
	}
}

// Destroyed and closed objects are refused, also where package via has no error
// to return.
func TestGone(t *testing.T) {
	s := &session{t: t, net: loopback.New(), done: make(map[string]bool)}
	e := s.open()
	s.ok("VipDestroyVi", vipl.VipDestroyVi(e.vi))
	query := func() vipl.Return { _, _, _, _, r := vipl.VipQueryVi(e.vi); return r }
	codes := map[string]vipl.Return{"query a destroyed vi": query()}
	s.ok("VipDeregisterMem", vipl.VipDeregisterMem(e.nic, e.mem.Addr(), e.mem))
	codes["query memory that is not registered"] = second(vipl.VipQueryMem(e.nic, e.mem.Addr(), e.mem))
	s.ok("VipCloseNic", vipl.VipCloseNic(e.nic))
	_, _, codes["query a closed nic"] = vipl.VipQueryNic(e.nic)
	codes["query a vi of a closed nic"] = query()
	codes["handle errors of a closed nic"] = vipl.VipErrorCallback(e.nic, nil, func(any, via.AsyncError) {})
	codes["destroy a tag of a closed nic"] = vipl.VipDestroyPtag(e.nic, e.tag)
	codes["close a closed nic"] = vipl.VipCloseNic(e.nic)
	_, _, _, codes["wait at a closed nic"] = vipl.VipConnectWait(e.nic, &hostAddr, 0)
	for name, r := range codes {
		if r != vipl.Return(via.ErrInvalidParameter) {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func second[T any](_ T, r vipl.Return) vipl.Return { return r }

func TestReturnStrings(t *testing.T) {
	for r, want := range map[vipl.Return]string{
		vipl.Success:                     "VIP_SUCCESS",
		vipl.Return(via.ErrNotDone):      "VIP_NOT_DONE",
		vipl.Return(via.ErrNameService):  "VIP_ERROR_NAMESERVICE",
		vipl.Return(via.ErrNotSupported): "VIP_ERROR_NOT_SUPPORTED",
		-1:                               "VIP_RETURN unknown",
		17:                               "VIP_RETURN unknown",
	} {
		if got := r.String(); got != want {
			t.Errorf("return %d is %q, want %q", int(r), got, want)
		}
	}
}
