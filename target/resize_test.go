package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// listen keeps the connection alive for n keepalives, and returns the first
// event that comes meanwhile, or nil.
func (p *peer) listen(n int) (*wire.Event, error) {
	b := make([]byte, wire.MaxControlSize)
	for range n {
		size, err := (&wire.KeepAlive{ID: 7, PathEpoch: p.epoch}).Encode(b)
		if err = errors.Join(err, p.send(b[:size])); err != nil {
			return nil, err
		}
		var v *wire.Event
		for answered := false; !answered; {
			e, err := p.receive()
			if err != nil {
				return nil, err
			}
			if answered = wire.RawOpcode(e.msg) == wire.OpKeepAliveAck; !answered {
				v = new(wire.Event)
				if err := v.Decode(e.msg); err != nil {
					return nil, err
				}
			}
		}
		if v != nil {
			return v, nil
		}
		time.Sleep(10 * time.Millisecond) // so that n keepalives span several intervals of the target
	}
	return nil, nil
}

// forever is more keepalives than a target needs to say something.
const forever = 10_000

func TestResizeEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	r := newRig(t, target.Config{KeepAlive: 300 * time.Millisecond}, target.Export{Name: "disk", Device: openDevice(t, "file:"+path)})
	enter := func(session byte, features wire.Features) (*peer, wire.OpenResponse) {
		p := r.peer(t)
		q := p.loginRequest(wire.RoleControl, [16]byte{session}, 0)
		q.Features = features
		must(t, p.login(q))
		var a wire.OpenResponse
		must(t, p.ask(&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadOnly, Name: "disk"}, &a))
		if a.Status != wire.StatusOK || a.Size != 4096 || a.SizeGen != 1 {
			t.Fatalf("opened: %+v", a)
		}
		return p, a
	}
	p, a := enter(1, wire.FeatureEvents)
	wantEvent := func(n int, id, gen uint32, size uint64) {
		t.Helper()
		v, err := p.listen(n)
		must(t, err)
		want := wire.Event{ID: id, PathEpoch: 1, Kind: wire.EventResize, Export: a.Export, SizeGen: gen, UUID: a.ExportUUID, Size: size}
		if v == nil || *v != want {
			t.Fatalf("event %+v, want %+v", v, want)
		}
	}
	ack := func(id uint32) {
		t.Helper()
		b := make([]byte, wire.MaxControlSize)
		n, err := (&wire.EventAck{ID: id, PathEpoch: 1, Kind: wire.EventResize}).Encode(b)
		must(t, errors.Join(err, p.send(b[:n])))
	}
	must(t, os.Truncate(path, 8192))
	wantEvent(forever, 1, 2, 8192)
	must(t, os.Truncate(path, 16384))
	if v, err := p.listen(60); err != nil || v != nil {
		t.Fatalf("an event before the ack of the last: %+v, %v", v, err)
	}
	must(t, os.Truncate(path, 512))
	ack(1)
	wantEvent(forever, 2, 3, 512)
	ack(2)
	if v, err := p.listen(60); err != nil || v != nil {
		t.Fatalf("an event of nothing: %+v, %v", v, err)
	}
	var again wire.OpenResponse
	must(t, p.ask(&wire.OpenRequest{ID: 3, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadOnly, Name: "disk"}, &again))
	if again.Export != a.Export || again.Size != 512 || again.SizeGen != 3 {
		t.Errorf("opened again: %+v", again)
	}
	must(t, p.close())

	// A session without the feature gets no events, and keeps the size.
	must(t, os.Truncate(path, 4096))
	p, _ = enter(2, wire.FeatureImmediate)
	must(t, os.Truncate(path, 8192))
	if v, err := p.listen(60); err != nil || v != nil {
		t.Fatalf("an event that was not agreed on: %+v, %v", v, err)
	}
	must(t, p.ask(&wire.OpenRequest{ID: 3, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadOnly, Name: "disk"}, &again))
	if again.Size != 4096 || again.SizeGen != 1 {
		t.Errorf("opened again without events: %+v", again)
	}
}
