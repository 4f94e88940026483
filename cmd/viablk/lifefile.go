package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
)

// lifePlaces is where an attach has clients that can outlive it.
type lifePlaces struct {
	socket string // of NBD clients; empty: none
	device string // the file of the kernel's device; empty: none yet
	folder string // of the files of devices; empty: the attach has none
	waits  bool   // the device is there, and waits for the process
}

// lifeFiles have who an attach is to its target, for the process that takes its
// place: one beside the NBD socket, and one of the kernel's device. A nil one
// is of an attach without either.
type lifeFiles struct {
	places lifePlaces
	socket *os.File    // locked: its lock ends with the process; nil: none
	device *os.File    // of who has reserved the device; nil: none
	uri    string      // of the disk
	before *lifeRecord // of the process that this one takes the place of; nil: none
	stays  bool        // the one of the socket, after an orderly end, too
	kept   bool        // the records are those of this process
	log    *slog.Logger
}

const lifeSuffix = ".life"

// openLifeFiles takes the places of an attach of a disk. The error wraps
// [nbd.ErrInUse] if another process lives at the socket. The device has been
// reserved. The caller calls close.
func openLifeFiles(p lifePlaces, remote config.URI, reattach bool, log *slog.Logger) (*lifeFiles, error) {
	if p.socket == "" && p.folder == "" {
		return nil, nil
	}
	l := &lifeFiles{places: p, uri: remote.Peer().String(), stays: reattach, log: log}
	if err := l.open(); err != nil {
		l.close(false)
		return nil, err
	}
	if reattach {
		if err := l.readBefore(); err != nil {
			l.close(false)
			return nil, fmt.Errorf("%w: %s", err, l.anew())
		}
	}
	return l, nil
}

// open opens the files.
func (l *lifeFiles) open() (err error) {
	if l.places.socket != "" {
		if err := l.lockSocket(); err != nil {
			return fmt.Errorf("lock %s%s: %w", l.places.socket, lifeSuffix, err)
		}
	}
	switch {
	case l.places.device != "":
		flags := os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
		if !l.places.waits { // what is there is of a device that was detached
			flags |= os.O_TRUNC
		}
		l.device, err = os.OpenFile(l.places.device, flags, 0o600)
	case l.places.folder != "":
		if err = os.MkdirAll(l.places.folder, 0o700); err == nil {
			l.device, err = os.CreateTemp(l.places.folder, "new-*"+lifeSuffix)
		}
	}
	return err
}

// lockSocket opens the file of the socket, unless another process lives there.
func (l *lifeFiles) lockSocket() (err error) {
	if err := makeFolder(config.URI{Socket: l.places.socket}); err != nil {
		return err
	}
	path := l.places.socket + lifeSuffix
	if l.socket, err = nbd.TryLock(path); l.socket != nil || err != nil {
		return err
	}
	pid := 0
	if f, err := os.Open(path); err == nil {
		if r, err := readLife(f); err == nil && r != nil {
			pid = r.PID
		}
		f.Close()
	}
	return fmt.Errorf("%w by process %d, which has not ended: stop it, or choose another path", nbd.ErrInUse, pid)
}

// readBefore reads who was there before.
func (l *lifeFiles) readBefore() error {
	socket, err := l.readSocket()
	if err != nil {
		return err
	}
	device, err := l.readDevice()
	if err != nil {
		return err
	}
	l.before, err = sameLife(socket, device)
	return err
}

// readSocket returns the record of the process before at the socket, nil if
// there was none.
func (l *lifeFiles) readSocket() (*lifeRecord, error) {
	if l.socket == nil {
		return nil, nil
	}
	r, err := readLife(l.socket)
	if err == nil && r != nil && r.Writer == "" && r.URI != l.uri {
		err = fmt.Errorf("the process before served %s", r.URI)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.socket.Name(), err)
	}
	if r == nil || r.Boot != thisBoot() {
		return nil, nil
	}
	return r, nil
}

// readDevice returns the record of the process before at a device that waits,
// nil if that has left none.
func (l *lifeFiles) readDevice() (*lifeRecord, error) {
	if !l.places.waits {
		return nil, nil
	}
	r, err := readLife(l.device)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.device.Name(), err)
	}
	// The kernel has said that the device is one of the URI.
	if r == nil || r.Boot != thisBoot() || r.URI != l.uri {
		l.log.Warn("whether another client wrote to the disk since the process before ended is not known, which left no record", "event", "life_unknown", "file", l.device.Name())
		return nil, nil
	}
	return r, nil
}

// sameLife returns the record of one process, which may have been killed when
// it had written one of two. Each may be nil.
func sameLife(socket, device *lifeRecord) (*lifeRecord, error) {
	switch {
	case socket == nil:
		return device, nil
	case device == nil:
		return socket, nil
	case socket.Writer != device.Writer:
		return nil, errors.New("the socket and the device are of two processes before, and one cannot continue both")
	case socket.Generation > device.Generation:
		return socket, nil
	}
	return device, nil
}

// reattaching reports whether a process was there before, whose clients wait.
func (l *lifeFiles) reattaching() bool { return l != nil && (l.before != nil || l.places.waits) }

// anew says how the disk gets clients that know nothing of those before.
func (l *lifeFiles) anew() string {
	const text = "check what is on the disk, and attach it without --reattach"
	if l.places.waits {
		return "unmount the device, detach it with --force, " + text
	}
	return "end the clients of " + l.places.socket + ", " + text
}

// continues returns the life to continue at a target, nil to begin one.
func (l *lifeFiles) continues() *initiator.Life {
	if l == nil || l.before == nil {
		return nil
	}
	life, _ := l.before.life() // it was checked when it was read
	return life
}

// keep makes a life that of the places. It is nil at an NBD server.
func (l *lifeFiles) keep(life *initiator.Life) {
	if l == nil {
		return
	}
	r := newLifeRecord(l.uri, life)
	for _, file := range []*os.File{l.socket, l.device} {
		if file == nil {
			continue
		}
		if err := r.write(file); err != nil { // what is there refuses more than it need
			l.log.Warn("the next process may not be able to take over the socket or device", "event", "life_not_kept", "file", file.Name(), "error", err)
		}
	}
	l.kept = true
}

// recorder returns keep for what a device calls, nil if there are no places.
func (l *lifeFiles) recorder() func(initiator.Life) {
	if l == nil {
		return nil
	}
	return func(life initiator.Life) { l.keep(&life) }
}

// publish makes the file of a device that the driver chose the one of its
// name. It is called once, by who has reserved the device.
func (l *lifeFiles) publish(path string) error {
	if l == nil || l.places.device != "" {
		return nil
	}
	if err := os.Rename(l.device.Name(), path); err != nil {
		return fmt.Errorf("keep who serves the device: %w", err)
	}
	l.places.device = path
	return nil
}

// close gives the places up. After an orderly end nothing is left at a socket
// for a next process, unless one is to take over; nor is an empty file. The
// file of a device stays, as its lock does: it says nothing of a device that is
// detached.
func (l *lifeFiles) close(orderly bool) {
	if l == nil {
		return
	}
	if l.socket != nil {
		info, err := l.socket.Stat()
		if empty := err == nil && info.Size() == 0; empty || l.kept && orderly && !l.stays {
			os.Remove(l.socket.Name())
		}
		l.socket.Close()
	}
	if l.device != nil {
		if l.places.device == "" {
			os.Remove(l.device.Name())
		}
		l.device.Close()
	}
}

// forgetLife removes what a process left that ended at a socket and was to be
// taken over. It leaves alone what another process has.
func forgetLife(socket string) {
	if f, err := nbd.TryLock(socket + lifeSuffix); f != nil && err == nil {
		os.Remove(f.Name())
		f.Close()
	}
}

// lifePath returns the file of a device in the folder of such files.
func lifePath(folder, device string) string {
	return filepath.Join(folder, filepath.Base(device)+lifeSuffix)
}

// placeOf returns the first unix socket of NBD URIs as a place.
func placeOf(local []config.URI) lifePlaces {
	if len(local) == 0 {
		return lifePlaces{}
	}
	return lifePlaces{socket: local[0].Socket}
}
