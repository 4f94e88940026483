package target

import (
	"crypto/x509"
	"log/slog"
	"slices"
	"strings"

	"github.com/viablk/viablk/internal/contain"
)

// VerifyInitiators verifies the certificates of connected initiators again, and
// ends the sessions of those that fail. It returns how many it ended.
func (s *Server) VerifyInitiators(verify func(chain []*x509.Certificate) error) (ended int) {
	for _, x := range s.sealedHere() {
		r := x.authenticated.Load()
		err := contain.Call(s.cfg.Log, "panic: a certificate is not verified", func() error { return verify(r.Certificates) })
		if err == nil {
			continue
		}
		s.caused.Log(s.cfg.Scheduler.Now(), x.clientName(), s.cfg.Log, slog.LevelWarn, "session ended: its certificate is not valid any more", "event", "certificate_refused",
			"peer", strings.Join(r.Names, " "), "serial", r.Serial, "error", err)
		s.setReason(x, "certificate not valid any more")
		x.end()
		x.controls((*signals).dismiss)
		ended++
	}
	return ended
}

// sealedHere returns the sessions that have authenticated at the server.
func (s *Server) sealedHere() []*session {
	return slices.DeleteFunc(s.begunHere(), func(x *session) bool { return x.authenticated.Load() == nil })
}
