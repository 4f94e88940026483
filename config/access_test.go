package config

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func loadText(t *testing.T, text string) (Effective, error) {
	t.Helper()
	return Load(write(t, "viablk.yaml", text), nil, nil)
}

// complains reports whether the first complaint begins as it should; "" is
// none.
func complains(err error, want string) bool {
	return err == nil && want == "" || err != nil && want != "" && strings.HasPrefix(err.Error(), want)
}

// unsafe reports whether every complaint is about values that give disks away.
func unsafe(err error) bool {
	var bad *Error
	return errors.As(err, &bad) && !slices.ContainsFunc(bad.Problems, func(p Problem) bool { return !p.Unsafe })
}

// Lists of clients, and NBD's TLS, are refused beside listeners that cannot
// keep them. insecure accepts that for TLS alone.
func TestListsThatListenersCannotKeep(t *testing.T) {
	const tls, require = "nbd: {tls: on, tls_certificates: c}\n", "nbd: {tls: require, tls_certificates: c}\n"
	const unverified = "nbd: {tls: on, tls_certificates: c, tls_verify_peer: false}\n"
	const nbd, unix, shm, roce = "nbd://127.0.0.1/", "nbd+unix:///?socket=/s", "via+shm:///?socket=/v", "via+roce://127.0.0.1/"
	const apart = `target.exports[1]: clients of export "b" cannot be told apart at `
	const known = `target.exports[1]: clients of export "b" have certificates, and those at `
	const needs = `target.exports[1]: clients are known by their certificates: set nbd.tls`
	const plain = "nbd.tls: require does not hold for initiators, who come in at "
	for _, c := range []struct {
		nbd, lists, listen string
		want               string
		unsafe             bool
	}{
		{tls, "clients: [alice]", nbd, "", false},
		{require, "clients: [alice]", nbd + " " + unix, "", false},
		{tls, "clients_read_only: [alice]", nbd, "", false},
		{"", "clients: [alice]", nbd, needs, false},
		{unverified, "clients: [alice]", nbd, needs, false},
		{"", "clients: [alice, 'user:root']", unix, needs, false},
		{"", "clients: ['user:root']", unix + " " + shm, "", false},
		{"", "clients_read_only: ['uid:7']", unix + " " + shm, "", false},
		{"", "clients: ['user:root']", nbd, apart + "nbd://127.0.0.1/", true},
		{unverified, "clients: ['user:root']", nbd, apart + "nbd://127.0.0.1/", true},
		{tls, "clients: ['user:root']", nbd, "", false}, // no client there is on the list
		{"", "clients: ['user:root']", shm + " " + roce, apart + "via+roce://127.0.0.1/", true},
		{tls, "clients: [alice]", nbd + " " + roce, apart + "via+roce://127.0.0.1/", true},
		{tls, "clients_read_only: [alice]", nbd + " " + roce, apart + "via+roce://127.0.0.1/", true},
		{tls, "clients: [alice]", nbd + " " + shm, known + "via+shm:///?socket=/v are known as users: add user:NAME", true},
		{tls, "clients: [alice, 'user:root']", nbd + " " + shm, "", false},
		{tls, "clients: [alice], clients_read_only: ['uid:7']", nbd + " " + shm, "", false},
		{"", "clients: []", roce, "", false},
		{"", "clients: ['group:disk']", unix, `target.exports[1]: export "b": client "group:disk": write user:NAME`, false},
		{tls, "clients: [alice], clients_read_only: [alice]", nbd, `target.exports[1]: export "b": "alice" is in clients and in clients_read_only`, false},
		{require, "default: false", nbd + " " + shm, "", false},
		{require, "default: false", roce, plain + "via+roce://127.0.0.1/ (target.listen[0])", true},
	} {
		listen := "listen: ['" + strings.ReplaceAll(c.listen, " ", "', '") + "']"
		file := c.nbd + "target: {exports: [{name: a, backend: 'memory:1M'}, {name: b, backend: 'memory:1M', " + c.lists + "}], " + listen + "}\n"
		_, err := loadText(t, file)
		if !complains(err, c.want) || c.want != "" && unsafe(err) != c.unsafe {
			t.Errorf("%s\ngot %v, want %q, unsafe %v", file, err, c.want, c.unsafe)
		}
		if _, err := loadText(t, "insecure: true\n"+file); c.unsafe && complains(err, "") != strings.HasPrefix(c.want, plain) {
			t.Errorf("insecure: true\n%s\ngot %v", file, err)
		}
	}
}

// An empty list admits no client, and no list every client; "config show" tells
// them apart.
func TestEmptyList(t *testing.T) {
	for list, want := range map[string]string{"": `{"name":"a"`, "clients: []": `"clients":[]`, "clients_read_only: []": `"clients_read_only":[]`} {
		e, err := loadText(t, "target: {exports: [{name: a, backend: 'memory:1M', "+list+"}]}")
		if err != nil {
			t.Fatal(err)
		}
		x := e.Config.Target.Exports[0]
		if r, err := x.Rights(); err != nil || (r == nil) != (list == "") {
			t.Errorf("%q: rights %v, %v", list, r, err)
		}
		document, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(document); !strings.Contains(text, want) || list == "" && strings.Contains(text, "clients") {
			t.Errorf("%q is shown as %s", list, text)
		}
	}
}

// The lists of an initiator are those of its disk, where it has any.
func TestListsOfAttach(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"attach: {nbd: 'nbd+unix:///x?socket=/s', clients: ['user:root'], clients_read_only: ['uid:7']}", ""},
		{"attach: {nbd: 'nbd+unix:///x?socket=/s', clients: [bob]}", "attach.clients: clients are known by their certificates"},
		{"attach: {nbd: 'nbd://127.0.0.1/x', clients_read_only: ['user:root']}", `attach.clients: clients of export "x" cannot be told apart at nbd://127.0.0.1/`},
		{"attach: {nbd: 'nbd://127.0.0.1/x', clients: ['user:']}", "attach.clients: client \"user:\""},
	} {
		if _, err := loadText(t, c.file); !complains(err, c.want) {
			t.Errorf("%s: got %v, want %q", c.file, err, c.want)
		}
	}
	x := Attach{ClientsReadOnly: []string{"uid:7"}}.Over(Export{Clients: []string{"alice"}})
	if len(x.Clients) != 0 || len(x.ClientsReadOnly) != 1 {
		t.Errorf("got %+v", x)
	}
	if x := (Attach{}).Over(Export{Clients: []string{}}); x.Clients == nil {
		t.Error("an empty list is lost")
	}
}
