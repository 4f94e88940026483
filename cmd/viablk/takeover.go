package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/takeover"
)

// takeoverProtocol is what a connection to the status socket becomes.
const takeoverProtocol = "viablk-takeover/1"

// claim is what a successor says of itself.
type claim struct {
	Exports []string `json:"exports"` // names
	Memory  bool     `json:"memory"`  // it takes disks in memory
	RoCE    bool     `json:"roce"`    // it takes sockets for VIA over RoCE

	// Where it listens for calls, which it takes over if this process does too.
	Status  string `json:"status_socket,omitempty"` // path in full
	Metrics string `json:"metrics,omitempty"`       // as the configuration says it
}

// maximumClaim bounds a claim, whose names are those of a configuration, which
// has no more bytes.
const maximumClaim = 8 << 20

// successor is a process that takes over, and its claim.
type successor struct {
	*takeover.Successor
	claim
	pid int
}

// departure is a target that has ended for its successor, and keeps what it
// served.
type departure struct {
	takeover.Departure
	config config.Effective
	heir   int // the successor if it is the process of an upgrade, else 0
}

// targets serves as a target, in the place of that with a status socket unless
// socket is empty, and again whenever a successor fails.
func (a *app) targets(ctx context.Context, e config.Effective, in *nbdListeners, load func() (config.Effective, error), socket string) error {
	var from *takeover.Inheritance
	if socket != "" {
		var err error
		if from, err = dialPredecessor(ctx, socket, claimOf(e.Config)); err != nil {
			in.close()
			return err
		}
	}
	heir := 0
	err := takeover.Serve(from, func(from *takeover.Inheritance) (*takeover.Departure, error) {
		next, err := a.target(ctx, e, in, load, newHandover(from))
		if next == nil {
			heir = 0
			return nil, err
		}
		in, e, heir = nil, next.config, next.heir
		next.Kept = discardInUse(next.Kept)
		return &next.Departure, err
	})
	if heir != 0 { // before the end of this process, which would be that of the service
		err = errors.Join(err, notify(stateMainPID+strconv.Itoa(heir)))
	}
	return err
}

// closeItems closes descriptors that were kept for a successor.
func closeItems(items []takeover.Item) {
	for _, x := range items {
		_ = unix.Close(x.FD)
	}
}

// keep returns further descriptors of what a target serves, which does not
// change from then on. An error changes nothing. monitor is the listener for
// metrics that the service manager gave it, or nil.
func (s *exportSet) keep(by claim, in *nbdListeners, monitor net.Listener) (items []takeover.Item, err error) {
	select {
	case s.changing <- struct{}{}:
	default:
		return nil, errChanging
	}
	defer func() {
		if s.frozen = err == nil; !s.frozen {
			<-s.changing
		}
	}()
	if err := s.mayHandOver(by); err != nil { // disks may have come since the successor asked
		return nil, err
	}
	held, err := s.held.Copy()
	if err != nil {
		return nil, err
	}
	for _, d := range held {
		name := itemDisk
		if d.Memory {
			name = itemMemory + d.Export
		}
		items = append(items, takeover.Item{Name: name, FD: d.FD})
	}
	endpoints := in.endpoints
	if monitor != nil {
		endpoints = append(slices.Clone(endpoints), endpoint{name: monitorSocket, listener: monitor})
	}
	for _, e := range endpoints {
		fd, err := nbd.CopyListener(e.listener)
		if err != nil {
			continue // the successor listens anew, once this one is closed
		}
		name := itemURI + e.uri.String()
		if e.name != "" {
			name = itemSocket + e.name
		}
		items = append(items, takeover.Item{Name: name, FD: fd})
	}
	fds, err := s.sockets.HandOver()
	if err != nil {
		closeItems(items)
		return nil, err
	}
	for _, fd := range fds {
		items = append(items, takeover.Item{Name: itemSHM, FD: fd})
	}
	return items, nil
}

// Flushes before a takeover: as long as one takes longer than shortFlush, the
// next one has less to do.
const (
	shortFlush = 20 * time.Millisecond
	flushes    = 4
)

// flush makes durable what clients have written, so that the flush at the end
// of the drain is short, which fails too if one here does. An error is that a
// disk does not answer in time.
func (s *exportSet) flush(ctx context.Context, limit time.Duration) error {
	end, err := s.begin(ctx) // no disk is closed meanwhile
	if err != nil {
		return nil
	}
	var calls []diskCall
	for _, d := range s.current() {
		if d.device.Info().Features&(block.ReadOnly|block.CanFlush) == block.CanFlush {
			calls = append(calls, diskCall{d.Name, func() error { flushDisk(d.device); return nil }})
		}
	}
	return doWithin(limit, "flush", calls, end) // what hands over is a change too
}

// flushDisk flushes a disk until that is short.
func flushDisk(device block.Device) {
	for range flushes {
		began := time.Now()
		if disk, err := block.NewDisk(device); err == nil {
			_ = errors.Join(disk.Sync(), disk.Close())
		}
		if time.Since(began) < shortFlush {
			return
		}
	}
}

// mayHandOver returns why the disks cannot move to a successor.
func (s *exportSet) mayHandOver(to claim) error {
	for _, d := range s.current() {
		if !slices.Contains(to.Exports, d.Name) {
			return fmt.Errorf("export %q would end: add it to the configuration of the new target, or remove it from this one first", d.Name)
		}
		if block.IdentityOf(d.device) == nil {
			return fmt.Errorf("export %q keeps no identity, and its clients would not find it again: restart the target without it first", d.Name)
		}
	}
	if export, ok := s.held.HasMemory(); ok && !to.Memory {
		return fmt.Errorf("export %q is in memory, which the version of the new target cannot take: remove it first", export)
	}
	return nil
}

// handleTakeover adds the route for a successor.
func (s *service) handleTakeover(mux *http.ServeMux) { mux.HandleFunc("POST /v1/takeover", s.takeover) }

// takeover serves a request to take over. An accepted one waits in successors.
func (s *service) takeover(w http.ResponseWriter, r *http.Request) {
	document, ok := readDocument(w, r, maximumClaim)
	if !ok {
		return
	}
	var by claim
	malformed := json.Unmarshal(document, &by)
	err := errors.New("only a target without --stdio is taken over")
	switch {
	case r.Header.Get("Upgrade") != takeoverProtocol:
		err = fmt.Errorf("this version of viablk knows %s", takeoverProtocol)
	case s.mayHandOver == nil:
	case malformed != nil:
		err = fmt.Errorf("the exports of the new target: %w", malformed)
	default:
		if err = s.phases.begin(phaseTakeover, func() {}); err != nil {
			break
		}
		if err = s.mayHandOver(by); err == nil {
			s.admit(r.Context(), w, by)
			return
		}
		s.phases.resume()
	}
	s.upgrade.refuse(err)
	answerError(w, http.StatusConflict, err)
}

// admit waits until the successor commits.
func (s *service) admit(ctx context.Context, w http.ResponseWriter, by claim) {
	process, pid, err := s.switchProtocol(w)
	if err == nil {
		err = process.Committed()
	}
	if err == nil {
		if err = s.flush(ctx, s.timeout); err == nil { // it may take long
			err = process.Waits()
		} else {
			s.upgrade.refuse(err)
			err = process.Expel(err)
		}
	}
	if err != nil {
		s.log.Warn("takeover failed: this target serves on", "event", "takeover_failed", "error", err)
		s.phases.resume()
		return
	}
	s.successors <- successor{process, by, pid} // there is one at a time
}

// switchProtocol takes the connection of a request from HTTP, and returns the
// process at its other end.
func (s *service) switchProtocol(w http.ResponseWriter) (by *takeover.Successor, pid int, err error) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, 0, err
	}
	if paced, ok := c.(*pacedConn); ok { // it takes no place of requests any more
		paced.release()
		c = paced.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, 0, fmt.Errorf("connection of type %T", c)
	}
	by, pid, err = takeover.Admit(u)
	if err != nil {
		c.Close()
		return nil, 0, err
	}
	// A failure to write shows when the successor is to commit.
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", takeoverProtocol)
	return by, pid, nil
}

// claimOf returns what a target with a configuration says of itself.
func claimOf(c config.Config) (x claim) {
	x.Memory, x.RoCE, x.Status, x.Metrics = true, true, adminPathOf(c), c.Metrics.Listen
	for _, e := range c.Target.Exports {
		x.Exports = append(x.Exports, e.Name)
	}
	return x
}

// dialPredecessor asks the target behind a status socket to be taken over. It
// serves on until the handover commits.
func dialPredecessor(ctx context.Context, path string, as claim) (*takeover.Inheritance, error) {
	document, err := json.Marshal(as)
	if err != nil {
		return nil, err
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	u := c.(*net.UnixConn)
	_ = u.SetDeadline(time.Now().Add(askTimeout))
	if _, err = fmt.Fprintf(u, "POST /v1/takeover HTTP/1.1\r\nHost: viablk\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n\r\n%s", takeoverProtocol, len(document), document); err == nil {
		err = readSwitched(u)
	}
	if err != nil {
		u.Close()
		return nil, fmt.Errorf("take over from the target at %q: %w", path, err)
	}
	return takeover.Inherit(takeover.NewPredecessor(u)), u.SetDeadline(time.Time{})
}

// readSwitched reads the answer. Nothing follows it before this process sends.
func readSwitched(c net.Conn) error {
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	return refusalOf(response, json.NewDecoder(io.LimitReader(response.Body, maximumAnswer)))
}
