package main

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/nbd"
)

// TestEventLines: what a process sends is printed in a line of printable
// characters.
func TestEventLines(t *testing.T) {
	for document, want := range map[string]string{
		`{"time":"2026-01-02T03:04:05.678Z","level":"INFO","msg":"a b","event":"x_y","z":1,"b":"c d","c":"\u001b[2J","d":"plain","e":null,"f":""}`: `2026-01-02 03:04:05.678  INFO   x_y                   a b b="c d" c="\x1b[2J" d=plain e=null f="" z=1`,
		`{"lost":17}`: "17 events are missing: they came too fast",
		`{"time":"2026-01-02T03:04:05Z","level":"\n","event":"\u001b","msg":"\u009b","\u0007":{"k":["\u0007"]}}`: `2026-01-02 03:04:05.000  \n     \x1b                  \u009b \a={"k":["\u0007"]}`,
	} {
		var got string
		err := eachEvent(strings.NewReader("id: 1\nevent: x\ndata: "+document+"\n\n:\n\n"), func(d []byte, x *eventRecord) error {
			got = x.line(d)
			return nil
		})
		if err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	if err := eachEvent(strings.NewReader("data: {\n"), nil); err == nil {
		t.Error("a record that is no JSON is printed")
	}
	endless := io.MultiReader(strings.NewReader("data: "), zeros{})
	if err := eachEvent(endless, nil); err == nil {
		t.Error("a record without an end is read")
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// TestEventsEndWithProcess: the status socket of a process that drains ends its
// readers, and none is left when its part has returned.
func TestEventsEndWithProcess(t *testing.T) {
	a := &app{stderr: io.Discard}
	c, err := a.load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Config.Admin = filepath.Join(t.TempDir(), "a.sock")
	for _, drained := range []bool{true, false} {
		log, level := a.serviceLog(c.Config.Log)
		s := a.newService(c.Config, log, level)
		path, err := s.startAdmin(t.Context(), c.Config, handover{}, newStatus("target"), sessionEnder{nbd: &nbd.Server{}}, func(*processStatus) {})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("x", "event", "a_b")
		conn, answer, err := openAdmin(t.Context(), path, adminCall{method: http.MethodGet, route: "/v1/events"})
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan struct{})
		read := make(chan error)
		go func() {
			n := 0
			err := eachEvent(answer, func([]byte, *eventRecord) error {
				if n++; n == 1 {
					close(first)
				}
				return nil
			})
			if err == nil && n != 2 {
				err = errors.New("not two events")
			}
			read <- err
		}()
		<-first
		log.Info("y", "event", "b_c")
		if drained {
			if err := s.drain(); err != nil {
				t.Error(err)
			}
		}
		s.release()
		if err := <-read; drained && err != nil {
			t.Error(err)
		}
		if err := s.events.Stream(nil, nil, "", false); err == nil {
			t.Error("a reader enters after the end")
		}
		conn.Close()
	}
}
