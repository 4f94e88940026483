package handshake_test

import (
	"testing"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
)

// corpus is a recorded handshake, and a recorded rekey.
func corpus(f *testing.F, a authority, firstNumber int) {
	cfg := a.initiator(f)
	for _, cfg.Rekey = range []bool{false, true} {
		var all []byte
		run(f, cfg, a.guard(f), func(n int, m *wire.Auth) {
			if n%2 == firstNumber {
				b := make([]byte, wire.MaxControlSize)
				k, err := m.Encode(b)
				must(f, err)
				all = append(all, b[:k]...)
				f.Add(b[:k])
			}
		})
		f.Add(all)
	}
}

// split reads messages that stand one behind the other.
func split(b []byte, take func(*wire.Auth) bool) {
	for len(b) >= wire.HeaderSize {
		size := wire.HeaderSize + int(b[16]) + int(b[17])<<8
		if size > len(b) {
			size = len(b)
		}
		var m wire.Auth
		if m.Decode(b[:size]) != nil || !take(&m) {
			return
		}
		b = b[size:]
	}
}

// FuzzTarget gives a target any messages: it is never done, for it has sent a
// nonce of its own, answers each, and ends.
func FuzzTarget(f *testing.F) {
	a := newAuthority(f)
	g := a.guard(f)
	corpus(f, a, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, of := range []*handshake.Result{nil, {Names: []string{"db1.example"}}} {
			target, err := g.NewTarget("peer", of)
			must(t, err)
			split(b, func(m *wire.Auth) bool {
				out, done, err := target.Step(m)
				if done || target.Result() != nil || out == nil {
					t.Fatalf("done %v, %+v, %v", done, out, err)
				}
				return err == nil
			})
			target.Close()
		}
	})
}

// FuzzInitiator does so with an initiator.
func FuzzInitiator(f *testing.F) {
	a := newAuthority(f)
	cfg := a.initiator(f)
	corpus(f, a, 1)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cfg.Rekey = range []bool{false, true} {
			i, err := handshake.NewInitiator(cfg)
			must(t, err)
			_, _, err = i.Step(nil)
			must(t, err)
			split(b, func(m *wire.Auth) bool {
				_, done, err := i.Step(m)
				if done || i.Result() != nil {
					t.Fatalf("done with %v", err)
				}
				return err == nil
			})
			i.Close()
		}
	})
}
