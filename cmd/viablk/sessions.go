package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// sessionStatus is a client of a process: an NBD connection that has an export,
// or the session of an initiator.
type sessionStatus struct {
	ID          string    `json:"id"`
	Face        string    `json:"face"`     // nbd, device, or via+PROVIDER
	Peer        string    `json:"peer"`     // address or process
	Identity    string    `json:"identity"` // as the kernel or a certificate proves it
	Exports     []string  `json:"exports"`
	Connections int       `json:"connections"`
	Opened      time.Time `json:"opened"`
	LastActive  time.Time `json:"last_active,omitzero"` // of the last request

	target.ExportCounts
}

// sessions returns the clients of the process, by age.
func (p *processStatus) sessions() []sessionStatus {
	list := []sessionStatus{}
	if p.NBD != nil {
		for _, c := range p.NBD.Connections {
			if !c.InExport {
				continue
			}
			s := sessionStatus{
				ID: c.ID, Face: "nbd", Peer: c.Client, Identity: c.Identity, Exports: []string{c.Export}, Connections: 1,
				Opened: c.Since, LastActive: c.LastActive,
				ExportCounts: target.ExportCounts{Counts: countsOf(&c.Counters), Errors: c.Errors, Waits: c.Waits},
			}
			if c.Kernel {
				s.Face, s.Peer, s.Identity = "device", "kernel", "kernel"
			}
			list = append(list, s)
		}
	}
	for _, t := range p.Targets {
		for _, x := range t.SessionList {
			list = append(list, sessionStatus{
				ID: x.ID, Face: "via+" + t.Provider, Peer: x.Peer, Identity: x.Identity, Exports: x.Exports,
				Connections: x.Connections, Opened: x.Opened, LastActive: x.LastActive, ExportCounts: x.Stats,
			})
		}
	}
	slices.SortStableFunc(list, func(a, b sessionStatus) int { return a.Opened.Compare(b.Opened) })
	return list
}

// errNoSession is that no client has the ID.
var errNoSession = errors.New("there is no such session")

// sessionEnder ends the clients of a process.
type sessionEnder struct {
	nbd     *nbd.Server
	targets viaServers
}

// end ends a client by its ID. It is idempotent.
func (e sessionEnder) end(id string) error {
	if err := e.nbd.EndClient(id); !errors.Is(err, nbd.ErrNoClient) {
		return err
	}
	for _, s := range e.targets {
		if s.server.EndSession(id) {
			return nil
		}
	}
	return errNoSession
}

// sessionReport is what GET /v1/sessions answers, and an element of what
// "viablk session ls" prints.
type sessionReport struct {
	Schema   string          `json:"schema"` // viablk.sessions/v1
	PID      int             `json:"pid"`
	Sessions []sessionStatus `json:"sessions"`
}

// handleSessions adds the routes of sessions.
func handleSessions(mux *http.ServeMux, cache *statusCache, ender sessionEnder) {
	mux.HandleFunc("GET /v1/sessions", func(w http.ResponseWriter, r *http.Request) {
		d, err := cache.now(r.Context())
		if err != nil {
			answerError(w, http.StatusServiceUnavailable, err)
			return
		}
		answerJSON(w, http.StatusOK, sessionReport{Schema: "viablk.sessions/v1", PID: d.status.PID, Sessions: d.status.Sessions})
	})
	mux.HandleFunc("DELETE /v1/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		err := ender.end(r.PathValue("id"))
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, errNoSession):
			answerError(w, http.StatusNotFound, err)
		default:
			answerError(w, http.StatusConflict, err)
		}
	})
}

// answerJSON answers a request with a document.
func answerJSON(w http.ResponseWriter, code int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// An error here is a client that went away.
	_ = json.NewEncoder(w).Encode(document)
}

// adminError is the answer to a request that fails.
type adminError struct {
	Error struct {
		Message  string           `json:"message"`
		Problems []config.Problem `json:"problems,omitempty"` // in the words of the configuration
	} `json:"error"`
}

// text returns the message with all problems.
func (e *adminError) text() string {
	if len(e.Error.Problems) == 0 {
		return e.Error.Message
	}
	var all []string
	for _, p := range e.Error.Problems {
		all = append(all, p.String())
	}
	return strings.Join(all, "; ")
}

// answerProblems answers a request for something that cannot be, with all that
// is wrong with it.
func answerProblems(w http.ResponseWriter, err error) {
	var document adminError
	document.Error.Message = fmt.Sprint(err)
	document.Error.Problems = problemsOf(err)
	answerJSON(w, http.StatusUnprocessableEntity, document)
}

// problemsOf lists what is wrong with a configuration, and what else is.
func problemsOf(err error) (problems []config.Problem) {
	var bad *config.Error
	if !errors.As(err, &bad) {
		return []config.Problem{{Message: fmt.Sprint(err)}}
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return bad.Problems
	}
	for _, one := range several.Unwrap() {
		problems = append(problems, problemsOf(one)...)
	}
	return problems
}

// answerError answers a request with an error.
func answerError(w http.ResponseWriter, code int, err error) {
	var document adminError
	document.Error.Message = fmt.Sprint(err)
	answerJSON(w, code, document)
}
