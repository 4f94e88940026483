package config

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDecodeLogLevel(t *testing.T) {
	for document, want := range map[string]string{
		`{"level":"debug"}`:              "debug",
		`{"level":"error"}`:              "error",
		`{"level":"loud"}`:               `log.level: must be debug, info, warn or error, not "loud"`,
		`{"level":"Debug"}`:              `log.level: must be debug, info, warn or error, not "Debug"`,
		`{"level":7}`:                    "log.level: 7 is not text: quote it",
		`{"level":null}`:                 "log.level: <nil> is not text: quote it",
		`{}`:                             `log.level: must be debug, info, warn or error, not ""`,
		`{"format":"json","level":"x"}`:  "format: unknown key; known here is level (and 1 more)",
		`[]`:                             "the document is not a JSON object",
		`null`:                           "the document is null",
		`{"level":"debug"} {"level":"x"`: "the document has more",
	} {
		got, err := DecodeLogLevel([]byte(document))
		if err != nil {
			got = err.Error()
			if p := err.(*Error).Problems[0]; p.Origin != FromAdmin {
				t.Errorf("%s: %+v has no origin", document, p)
			}
		}
		if got != want && !strings.HasPrefix(got, want+" ") && !(err != nil && strings.HasPrefix(got, want)) {
			t.Errorf("%s: %s; want %s", document, got, want)
		}
	}
}

func TestDecodeExport(t *testing.T) {
	x, err := DecodeExport([]byte(`{"name":"a.B","backend":"memory:1M","limits":{"iops":5,"burst":"1s"},"clients":[],"minimum_block":"4KiB"}`))
	want := Export{Name: "a.B", Backend: "memory:1M", Limits: Limits{IOPS: 5, Burst: time.Second}, Clients: []string{}, MinimumBlock: 4 * KiB}
	if err != nil || !reflect.DeepEqual(x, want) {
		t.Errorf("%+v, %v", x, err)
	}
	for document, complaint := range map[string]string{
		``:                                      "is not a JSON object",
		`[]`:                                    "is not a JSON object",
		`null`:                                  "is null",
		`{"name":"a","backend":"null:1M"} {}`:   "more behind",
		`{"name":"a"}`:                          "has no backend",
		`{"name":"a","bckend":"null:1M"}`:       "bckend: unknown key",
		`{"name":"a","backend":5}`:              "backend: 5 is not text",
		`{"name":"a\u0000","backend":"null:1"}`: "zero byte",
		`{"name":"a","backend":"null:1M","limits":{"iops":-1}}`:      "limits.iops is -1",
		`{"name":"a","backend":"null:1M","read_only":"perhaps"}`:     "read_only: perhaps is not true or false",
		`{"name":"a","backend":"null:1M","minimum_block":"4 pages"}`: "minimum_block",
	} {
		_, err := DecodeExport([]byte(document))
		var bad *Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), complaint) || strings.Contains(err.Error(), "target.") {
			t.Errorf("%s: %v, want %q", document, err, complaint)
		}
	}
}

func TestMerge(t *testing.T) {
	yes := true
	x := Export{Name: "a", Backend: "memory:1M", Description: "old", Rotational: &yes, Clients: []string{"user:root"}, Limits: Limits{IOPS: 5, Bandwidth: MiB}}
	got, err := x.Merge([]byte(`{"description":"new","clients":null,"limits":{"iops":7}}`))
	want := x
	want.Description, want.Clients, want.Limits = "new", nil, Limits{IOPS: 7, Bandwidth: MiB}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := x.Merge([]byte(`{}`)); err != nil || !reflect.DeepEqual(got, x) {
		t.Errorf("an empty patch: %+v, %v", got, err)
	}
	if _, err := x.Merge([]byte(`{"limits":7}`)); err == nil || !strings.Contains(err.Error(), "limits: is a mapping") {
		t.Errorf("limits that are no mapping: %v", err)
	}
}

// TestChange: a patch may have a size beside settings. An error has the
// mistakes of both.
func TestChange(t *testing.T) {
	x := Export{Name: "a", Backend: "file:a", ReadOnly: true}
	for patch, want := range map[string]Change{
		`{}`:                                      {Export: x},
		`{"size":"20G"}`:                          {Export: x, Size: 20 * GiB},
		`{"size":1024}`:                           {Export: x, Size: KiB},
		`{"size":"1 MiB","description":"d"}`:      {Export: Export{Name: "a", Backend: "file:a", Description: "d", ReadOnly: true}, Size: MiB},
		`{"read_only":false}`:                     {Export: Export{Name: "a", Backend: "file:a"}, Writable: true},
		`{"read_only":null}`:                      {Export: Export{Name: "a", Backend: "file:a"}, Writable: true},
		`{"read_only":"true","size":"9E1"}`:       {},
		`{"read_only":true,"size":"8388607T"}`:    {Export: x, Size: 8388607 * TiB},
		`{"size":0}`:                              {},
		`{"size":-512}`:                           {},
		`{"size":1000}`:                           {},
		`{"size":1.5}`:                            {},
		`{"size":"20GB"}`:                         {},
		`{"size":"8E"}`:                           {},
		`{"size":true}`:                           {},
		`{"size":[512]}`:                          {},
		`{"size":{"size":512}}`:                   {},
		`{"size":null}`:                           {},
		`{"Size":"1M"}`:                           {},
		`{"size":"1M","backend":"limit:iops=1:"}`: {},
	} {
		got, err := x.Change([]byte(patch))
		if (err != nil) != (want.Name == "") || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", patch, got, err)
		}
	}
	_, err := x.Change([]byte(`{"size":"20GB","sise":"1M","read_only":7}`))
	var bad *Error
	if !errors.As(err, &bad) || len(bad.Problems) != 3 || bad.Problems[0].Key != "size" || bad.Problems[0].Origin != FromAdmin {
		t.Errorf("three mistakes: %+v", err)
	}
	if _, err := x.Merge([]byte(`{"size":"1M"}`)); err == nil || !strings.Contains(err.Error(), "size: unknown key") {
		t.Errorf("a size among settings: %v", err)
	}
}

// FuzzExportDocument: a document is refused, or an export that says the same as
// a document again.
func FuzzExportDocument(f *testing.F) {
	f.Add([]byte(`{"name":"a","backend":"memory:1M","limits":{"iops":5,"bandwidth":"1MiB","burst":"1s"},"clients":["uid:7"],"rotational":false}`), []byte(`{"description":"d","limits":null}`))
	f.Add([]byte(`{"name":"","backend":"x","minimum_block":512}`), []byte(`{"name":[]}`))
	f.Add([]byte(`{"name":"a","backend":"file:a","read_only":true}`), []byte(`{"size":"20G","read_only":false}`))
	f.Add([]byte(`{"name":"a","backend":"file:a"}`), []byte(`{"size":1e15,"Size":null}`))
	f.Fuzz(func(t *testing.T, document, patch []byte) {
		x, err := DecodeExport(document)
		if err != nil {
			return
		}
		text, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeExport(text)
		if err != nil || !reflect.DeepEqual(again, x) {
			t.Errorf("%s: %+v, then %+v, %v", text, x, again, err)
		}
		if y, err := x.Merge(patch); err == nil && y.validate() != nil {
			t.Errorf("%s makes %+v", patch, y)
		}
		c, err := x.Change(patch)
		var bad *Error
		switch {
		case err == nil && (c.validate() != nil || c.Size < 0 || c.Size%512 != 0 || c.Writable && c.ReadOnly):
			t.Errorf("%s changes it to %+v", patch, c)
		case err != nil && (!errors.As(err, &bad) || !reflect.DeepEqual(c, Change{})):
			t.Errorf("%s: %+v, %v", patch, c, err)
		}
	})
}
