package session

import (
	"bytes"
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	steadyTime      = flag.Duration("session.steady", 6*time.Second, "how long TestNoFalseLosses keeps the processors busy")
	steadyKeepalive = flag.Duration("session.steadykeepalive", 250*time.Millisecond, "keepalive of its target")
)

// hogs is how many processes keep the processors busy in TestNoFalseLosses.
const hogs = 16

// TestNoFalseLosses: 16 processes keep all processors busy, at the priority of
// a target and its initiators, over shared memory and RoCE: of each fabric two
// with light I/O and one that is idle. Amid that all of these are stopped for a
// time, as on a machine that is suspended. With the default keepalive no end
// takes the other one for dead: each session and each connection stays the
// same.
func TestNoFalseLosses(t *testing.T) {
	testbed.Alone(t)
	p, users := steadyTarget(t)
	before := p.Status()
	for i, c := range before.Targets {
		if c.Sessions != len(users)/len(before.Targets) {
			t.Fatalf("provider %d: %+v", i, c)
		}
	}

	var all []*testbed.Tool
	for range hogs {
		all = append(all, testbed.StartPath(t, nil, testbed.Locate("sh"), "-c", "while :; do :; done"))
	}
	over := make(chan struct{})
	var running sync.WaitGroup
	for _, u := range users {
		running.Go(func() { u.use(t, over) })
	}
	time.Sleep(*steadyTime / 2)
	suspend(p, users)
	time.Sleep(*steadyTime / 2)
	close(over)
	running.Wait()
	var burnt time.Duration
	for _, h := range all {
		used := testbed.ProcessorTime(t, h.Cmd.Process.Pid)
		if burnt += used; used == 0 {
			t.Error("a process that is to keep a processor busy never ran")
		}
		h.Kill()
	}

	lost, requests := uint64(0), 0
	for _, u := range users {
		i := u.attach.Status().Initiators[0]
		if lost += i.SessionLosses; i.SessionLosses != 0 || !i.Connected || i.Error != "" || i.Stats.Reconnects != 0 || i.Stats.Errors != 0 {
			t.Errorf("%s: %+v", u.name, i)
		}
		if requests += u.requests; u.requests == 0 {
			t.Errorf("%s: no request", u.name)
		}
	}
	for i, c := range p.Status().Targets {
		was := before.Targets[i]
		if c.Accepted != was.Accepted || c.Connections != was.Connections || c.Sessions != was.Sessions || c.Stats.Errors != 0 {
			t.Errorf("the target had %+v and has %+v", was, c)
		}
	}
	t.Logf("%d of %d sessions lost in %v, of which %d other processes used %v of the processors; %d requests",
		lost, len(users), *steadyTime, hogs, burnt.Round(time.Millisecond), requests)
}

// steadyUser is a client of an initiator.
type steadyUser struct {
	name     string
	attach   *testbed.Process
	disk     *history.Conn
	idle     bool
	requests int
}

// steadyTarget starts a target for both fabrics, and initiators with a client
// each, whose first request has been answered.
func steadyTarget(t *testing.T) (*testbed.Process, []*steadyUser) {
	t.Helper()
	args := []string{
		"target", "--admin", filepath.Join(testbed.Folder(t), "target"), "--keepalive", steadyKeepalive.String(),
		"--listen", "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"), "--listen", "via+roce://127.79.8.1/",
	}
	var users []*steadyUser
	for _, provider := range []string{"shm", "roce"} {
		for i := range 3 {
			u := &steadyUser{name: fmt.Sprint(provider, i), idle: i == 2}
			users = append(users, u)
			args = append(args, "--export", u.name+"=memory:1MiB")
		}
	}
	p := testbed.StartBinary(t, testbed.Program(t), args...)
	for i, u := range users {
		scheme := []string{"via+shm", "via+roce"}[i/3]
		u.attach = testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI(u.name, scheme), u.name)
		_, socket := testbed.AddressOf(t, u.attach.URI(u.name, "nbd+unix"))
		var err error
		u.disk, err = history.Dial(t.Context(), "unix", socket, u.name)
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, u.disk.Close()) })
		testbed.Must(t, u.request())
	}
	return p, users
}

// suspension is how long all ends are stopped. A connection over RoCE whose
// peer acknowledges nothing breaks after 4.5 s.
const suspension = 5 * time.Second

// suspend stops all processes for a time. None sees that the others stop.
func suspend(p *testbed.Process, users []*steadyUser) {
	all := []*testbed.Process{p}
	for _, u := range users {
		all = append(all, u.attach)
	}
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, x := range all {
			x.Signal(s)
		}
		if s == syscall.SIGSTOP {
			time.Sleep(suspension)
		}
	}
}

// steadyPause is between two requests of a client.
const steadyPause = 20 * time.Millisecond

// use makes requests until all is over; an idle client makes one at the end.
func (u *steadyUser) use(t *testing.T, over <-chan struct{}) {
	pause := time.NewTicker(steadyPause)
	defer pause.Stop()
	for !u.idle {
		if err := u.request(); err != nil {
			t.Errorf("%s: %v", u.name, err)
			return
		}
		select {
		case <-pause.C:
		case <-over:
			return
		}
	}
	<-over
	if err := u.request(); err != nil {
		t.Errorf("%s: %v", u.name, err)
	}
}

// request writes a block and reads it.
func (u *steadyUser) request() error {
	data, back := make([]byte, history.BlockSize), make([]byte, history.BlockSize)
	at := int64(u.requests%256) * history.BlockSize
	u.requests++
	history.Fill(data, uint64(u.requests))
	if _, err := u.disk.WriteAt(data, at); err != nil {
		return err
	}
	if _, err := u.disk.ReadAt(back, at); err != nil {
		return err
	}
	if !bytes.Equal(data, back) {
		return fmt.Errorf("request %d reads other data", u.requests)
	}
	return nil
}
