package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/identity"
)

// lifeFile is the file beside the NBD socket of an attach that has who it is to
// the target, for the process that takes its place. Its lock says that the
// process lives: it ends with the process, however that ends. A nil one is of
// an attach without such a socket.
type lifeFile struct {
	file   *os.File
	socket string
	uri    string      // of the disk
	before *lifeRecord // of the process that this one takes the place of; nil: none
	stays  bool        // after an orderly end, too
	kept   bool        // the record is that of this process
	log    *slog.Logger
}

// lifeRecord is what is in the file.
type lifeRecord struct {
	Schema     string `json:"schema"` // viablk.life/v1
	PID        int    `json:"pid"`
	Boot       string `json:"boot"` // of the machine: its clients end with it
	URI        string `json:"uri"`
	Writer     string `json:"writer"`     // and the others of [initiator.Life]; empty
	UUID       string `json:"uuid"`       // of an NBD server's export
	Generation uint64 `json:"generation"` //
	Verifier   uint64 `json:"verifier"`   //
}

const (
	lifeSchema = "viablk.life/v1"
	lifeSuffix = ".life"
	lifeLimit  = 4 << 10 // bytes
)

// openLifeFile takes the place at the first unix socket of local, if there is
// one, for the attach of a disk. The error wraps [nbd.ErrInUse] if another
// process lives there. The caller calls close.
func openLifeFile(local []config.URI, remote config.URI, reattach bool, log *slog.Logger) (*lifeFile, error) {
	if len(local) == 0 || local[0].Socket == "" {
		return nil, nil
	}
	if err := makeFolder(local[0]); err != nil {
		return nil, err
	}
	l := &lifeFile{socket: local[0].Socket, uri: remote.Peer().String(), stays: reattach, log: log}
	if err := l.lock(); err != nil {
		return nil, fmt.Errorf("lock %s%s: %w", l.socket, lifeSuffix, err)
	}
	if !reattach {
		return l, nil
	}
	r, err := l.read()
	if err == nil && r != nil && r.Writer == "" && r.URI != l.uri {
		err = fmt.Errorf("the process before served %s", r.URI)
	}
	if err != nil {
		l.file.Close()
		return nil, fmt.Errorf("%s%s: %w: end the clients of the socket, and attach without --reattach", l.socket, lifeSuffix, err)
	}
	if r != nil && r.Boot == thisBoot() {
		l.before = r
	}
	return l, nil
}

// lock opens the file, unless another process lives at the socket.
func (l *lifeFile) lock() (err error) {
	path := l.socket + lifeSuffix
	if l.file, err = nbd.TryLock(path); l.file != nil || err != nil {
		return err
	}
	pid := 0
	if f, err := os.Open(path); err == nil {
		other := lifeFile{file: f}
		if r, err := other.read(); err == nil && r != nil {
			pid = r.PID
		}
		f.Close()
	}
	return fmt.Errorf("%w by process %d, which has not ended: stop it, or choose another path", nbd.ErrInUse, pid)
}

// read returns what is in the file, nil if that is nothing.
func (l *lifeFile) read() (*lifeRecord, error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, lifeLimit))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	r := new(lifeRecord)
	// A process that was killed while it wrote may have left a part of the
	// record before behind its own.
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(r); err != nil {
		return nil, fmt.Errorf("the record is damaged: %w", err)
	}
	if r.Schema != lifeSchema {
		return nil, fmt.Errorf("the record is of another version, %q", r.Schema)
	}
	if _, err := r.life(); err != nil {
		return nil, fmt.Errorf("the record is damaged: %w", err)
	}
	return r, nil
}

// reattaching reports whether a process was there before, whose clients wait.
func (l *lifeFile) reattaching() bool { return l != nil && l.before != nil }

// continues returns the life to continue at a target, nil to begin one.
func (l *lifeFile) continues() *initiator.Life {
	if !l.reattaching() {
		return nil
	}
	life, _ := l.before.life() // read has checked it
	return life
}

// keep makes a life that of the socket. It is nil at an NBD server.
func (l *lifeFile) keep(life *initiator.Life) {
	if l == nil {
		return
	}
	r := lifeRecord{Schema: lifeSchema, PID: os.Getpid(), Boot: thisBoot(), URI: l.uri}
	if life != nil {
		r.Writer, r.UUID = block.FormatUUID(life.Writer), block.FormatUUID(life.UUID)
		r.Generation, r.Verifier = life.Generation, life.Verifier
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = l.file.WriteAt(append(text, '\n'), 0)
	}
	if err == nil {
		err = l.file.Truncate(int64(len(text)) + 1)
	}
	if err != nil { // what is there refuses more than it need
		l.log.Warn("the next process may not be able to take over the socket", "event", "life_not_kept", "socket", l.socket, "error", err)
	}
	l.kept = true
}

// recorder returns keep for what a device calls, nil if there is no socket.
func (l *lifeFile) recorder() func(initiator.Life) {
	if l == nil {
		return nil
	}
	return func(life initiator.Life) { l.keep(&life) }
}

// close gives the place at the socket up. After an orderly end nothing is left
// for a next process, unless one is to take over; nor is an empty file.
func (l *lifeFile) close(orderly bool) {
	if l == nil {
		return
	}
	info, err := l.file.Stat()
	if empty := err == nil && info.Size() == 0; empty || l.kept && orderly && !l.stays {
		os.Remove(l.file.Name())
	}
	l.file.Close()
}

// forgetLife removes what a process left that ended at a socket and was to be
// taken over. It leaves alone what another process has.
func forgetLife(socket string) {
	if f, err := nbd.TryLock(socket + lifeSuffix); f != nil && err == nil {
		os.Remove(f.Name())
		f.Close()
	}
}

// life returns the life of the record, nil if it has none.
func (r *lifeRecord) life() (*initiator.Life, error) {
	if r.Writer == "" {
		return nil, nil
	}
	l := &initiator.Life{Generation: r.Generation, Verifier: r.Verifier}
	for id, text := range map[*[16]byte]string{&l.Writer: r.Writer, &l.UUID: r.UUID} {
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(b) != len(id) {
			return nil, errors.Join(fmt.Errorf("%q is no UUID", text), err)
		}
		copy(id[:], b)
	}
	return l, nil
}

// thisBoot returns the boot ID of the machine.
func thisBoot() string { return block.FormatUUID(identity.ThisBoot()) }
