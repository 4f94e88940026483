package nbdtest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
)

// Server is a server to ask.
type Server struct {
	Name string

	// Dial connects. It is called several times for a statement.
	Dial func() (net.Conn, error)

	// Export is a writable export of 6 GiB or more without other clients; most
	// statements change it.
	Export string

	// ReadOnly is an export that is read-only, or reached by DialReadOnly.
	// Without either, statements about it do not apply.
	ReadOnly     string
	DialReadOnly func() (net.Conn, error)

	// TLS is how to speak to a server that has TLS, and nil to one that has
	// not. Forced says that it refuses everything else.
	TLS    *tls.Config
	Forced bool
}

// Statement is what a server should do.
type Statement struct {
	ID   string
	Text string

	// probe ends by returning, or by one of the methods of peer that end it.
	probe func(*probe)
}

// Outcome is what came out.
type Outcome string

// The verdicts.
const (
	Pass       Outcome = "pass"
	Fail       Outcome = "FAIL"
	Dead       Outcome = "DEAD" // fails, and the server serves no client afterwards
	NotOffered Outcome = "-"    // the server has not the feature that the statement is about
)

// Result is a verdict and its reason.
type Result struct {
	Outcome Outcome
	Why     string
}

// Statements returns all statements, in order.
func Statements() []Statement {
	return slices.Concat(handshakes, informations, metas, requests, ranges, lengths, pipelines, chunks, extents, secrets, attacks)
}

// timeout bounds every wait of a probe. A server that needs longer for an
// answer hangs.
const timeout = time.Minute

// probe is a statement that is being asked of a server.
type probe struct {
	*Server
	conns []net.Conn
}

// failure and absence end a probe.
type (
	failure    struct{ error }
	notOffered struct{ string }
)

// failf ends the probe: the server does not do what the statement says.
func (*probe) failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// notOffered ends the probe: the statement is about something else.
func (*probe) notOffered(what string) { panic(notOffered{what}) }

// Ask asks a server. Afterwards it is asked whether it still lives.
func (s Statement) Ask(server *Server) (r Result) {
	r = s.run(server)
	if err := alive(server); err != nil {
		return Result{Dead, errors.Join(errors.New(r.Why), err).Error()}
	}
	return r
}

func (s Statement) run(server *Server) (r Result) {
	p := &probe{Server: server}
	defer func() {
		for _, c := range p.conns {
			_ = c.Close()
		}
		switch end := recover().(type) {
		case nil:
		case failure:
			r = Result{Fail, end.Error()}
		case notOffered:
			r = Result{NotOffered, end.string}
		default:
			panic(end)
		}
	}()
	s.probe(p)
	return Result{Outcome: Pass}
}

// alive reports whether a server serves a new client.
func alive(server *Server) error {
	check := Statement{probe: func(p *probe) { p.connect(simple).wantAlive() }}
	if r := check.run(server); r.Outcome != Pass {
		return fmt.Errorf("afterwards a new client is not served: %s", r.Why)
	}
	return nil
}

// isTimeout reports whether an error is that the server did nothing in time.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
