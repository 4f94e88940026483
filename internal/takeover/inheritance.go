package takeover

import (
	"log/slog"
	"slices"
)

// Inheritance is what a process starts with instead of opening it: what its
// predecessor served, or the process itself before a takeover that failed. Nil
// is nothing. One goroutine uses it.
type Inheritance struct {
	from    *Predecessor // nil: this process itself
	ended   bool         // the predecessor ended before it gave everything
	items   []Item
	channel Channel // closes descriptors
}

// Inherit returns what a predecessor will give.
func Inherit(from *Predecessor) *Inheritance {
	return &Inheritance{from: from, channel: from.channel}
}

// Receive has the predecessor stop, and takes what it served.
func (h *Inheritance) Receive() (err error) {
	if h == nil || h.from == nil {
		return nil
	}
	h.items, h.ended, err = h.from.Commit()
	return err
}

// Ended reports whether the predecessor ended before it gave everything: it may
// still hold locks.
func (h *Inheritance) Ended() bool { return h != nil && h.ended }

// Resumes reports whether the process has served before.
func (h *Inheritance) Resumes() bool { return h != nil && h.from == nil }

// MayFail reports whether another process goes on if this one does not serve.
func (h *Inheritance) MayFail() bool { return h != nil && h.from != nil && !h.ended }

// Items returns the items that have no other owner.
func (h *Inheritance) Items() []Item {
	if h == nil {
		return nil
	}
	return slices.Clone(h.items)
}

// Claim returns the descriptor of an item, -1 if there is none. The caller owns
// it.
func (h *Inheritance) Claim(name string) int {
	if h == nil {
		return -1
	}
	i := slices.IndexFunc(h.items, func(x Item) bool { return x.Name == name })
	if i < 0 {
		return -1
	}
	fd := h.items[i].FD
	h.items = slices.Delete(h.items, i, i+1)
	return fd
}

// Opened waits until the process may serve. Before that it has opened
// everything.
func (h *Inheritance) Opened() error {
	if h == nil || h.from == nil {
		return nil
	}
	return h.from.Opened()
}

// Serving says that the process serves.
func (h *Inheritance) Serving() {
	if h != nil && h.from != nil {
		h.from.Serving()
		h.from = nil
	}
}

// Fail says why the process does not serve.
func (h *Inheritance) Fail(cause error) {
	if h != nil && h.from != nil {
		h.from.Fail(cause)
	}
}

// Close closes descriptors that have no other owner.
func (h *Inheritance) Close() {
	if h == nil {
		return
	}
	for _, x := range h.items {
		h.channel.Discard(x.FD)
	}
	h.items = nil
}

// Departure is a process that has ended for its successor all that used the
// items, of which it keeps descriptors.
type Departure struct {
	Successor *Successor
	Kept      []Item
	Log       *slog.Logger
}

// give hands over. It returns nil if the successor serves, and else what this
// process goes on with.
func (d *Departure) give() *Inheritance {
	kept := &Inheritance{items: d.Kept, channel: d.Successor.channel}
	if err := d.Successor.Give(d.Kept); err != nil {
		d.Log.Error("takeover failed: this target serves on", "event", "takeover_failed", "error", err)
		return kept
	}
	d.Log.Info("the successor serves", "event", "taken_over")
	kept.Close()
	return nil
}

// Serve calls serve with what the process starts with, and again whenever its
// successor fails. It ends when the process has no successor, or one that
// serves. serve returns after everything that it used has ended.
func Serve(from *Inheritance, serve func(*Inheritance) (*Departure, error)) error {
	for {
		next, err := serve(from)
		if next == nil {
			from.Fail(err)
			return err
		}
		if from = next.give(); from == nil {
			return err
		}
	}
}
