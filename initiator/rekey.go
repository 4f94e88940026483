package initiator

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
)

// A rekey is a handshake inside the sealed control connection. It gives the
// session other keys, and both ends verify the certificate of the other again.
// Each queue switches to the new keys independently, with the next message that
// it seals, see package seal: requests wait for nothing. An end that is refused
// ends the session, and the reconnector tells why the next one is refused too.

const (
	rekeyInterval = 24 * time.Hour
	checkInterval = time.Hour // between checks of certificates
	rekeyRetry    = time.Minute

	// confirmTimeout bounds how long a rekey waits for a target that has not
	// answered on every connection since the last one, confirmPoll is the
	// interval of the wait.
	confirmTimeout = 5 * time.Second
	confirmPoll    = 10 * time.Millisecond
)

var errTargetExpired = &SecurityError{errors.New("the certificate of the target has expired")}

// sessionKeys is what a session is sealed with, since the last handshake.
type sessionKeys struct {
	*handshake.Result
	shown []byte // own certificate
	at    time.Time
}

// newSessionKeys returns the keys of a handshake with a configuration.
func newSessionKeys(r *handshake.Result, cfg *handshake.Config, at time.Time) *sessionKeys {
	return &sessionKeys{Result: r, shown: shownBy(cfg), at: at}
}

// shownBy returns the certificate that a configuration shows, if it is known.
func shownBy(cfg *handshake.Config) []byte {
	if len(cfg.TLS.Certificates) == 0 || len(cfg.TLS.Certificates[0].Certificate) == 0 {
		return nil
	}
	return cfg.TLS.Certificates[0].Certificate[0]
}

// rekeyer is the part of routineControl that renews the keys of the session and
// watches the certificates of both ends.
type rekeyer struct {
	due     time.Time // the next rekey
	checks  time.Time // the next check
	retires time.Time // the keys from before the last rekey; zero: there are none
	wakes   time.Time // when tend is to be called

	handshake *handshake.Initiator // in flight; else nil
	cfg       handshake.Config     // of it
	asked     time.Time            // when the last message of it was sent
}

// wait returns how long routineControl may sleep, at most d if that is not
// negative.
func (r *rekeyer) wait(now func() time.Time, d time.Duration) time.Duration {
	if r.wakes.IsZero() {
		return d
	}
	if left := max(0, r.wakes.Sub(now())); d < 0 || left < d {
		return left
	}
	return d
}

// wakeAt has routineControl call tend at a time.
func (r *rekeyer) wakeAt(t time.Time) {
	if !t.IsZero() && (r.wakes.IsZero() || t.Before(r.wakes)) {
		r.wakes = t
	}
}

// checkCertificates has routineControl check the certificates now.
func (s *session) checkCertificates() {
	s.recheck.Store(true)
	if p := s.lead(); p != nil {
		p.wakeControl()
	}
}

// tendKeys does what is due: it checks certificates, and begins a rekey. An
// error ends the session.
func (k *controller) tendKeys() error {
	keys := k.s.keys.Load()
	if keys == nil {
		return nil
	}
	r, now := &k.rekey, k.s.cfg.Scheduler.Now()
	if r.due.IsZero() {
		r.due, r.checks = keys.at.Add(k.s.cfg.RekeyInterval), now.Add(checkInterval)
	}
	if !now.Before(keys.NotAfter) {
		return errTargetExpired
	}
	if r.handshake != nil && now.Sub(r.asked) >= k.s.cfg.Timeout {
		return fmt.Errorf("%w: the target was silent amid a rekey for %v", errSession, k.s.cfg.Timeout)
	}
	if !r.retires.IsZero() && !now.Before(r.retires) {
		keys.Session.Retire()
		r.retires = time.Time{}
	}
	if k.s.recheck.Swap(false) || !now.Before(r.checks) {
		r.checks = now.Add(checkInterval)
		if err := k.check(keys, now); err != nil {
			return err
		}
	}
	if err := k.beginRekey(keys, now); err != nil {
		return err
	}
	r.wakes = time.Time{}
	r.wakeAt(keys.NotAfter)
	r.wakeAt(r.checks)
	r.wakeAt(r.retires)
	switch {
	case r.handshake != nil:
		r.wakeAt(r.asked.Add(k.s.cfg.Timeout))
	case !now.Before(r.due) && k.rekeys():
		r.wakeAt(now.Add(confirmPoll))
	case k.rekeys():
		r.wakeAt(r.due)
	}
	return nil
}

// rekeys reports whether the control connection is the one that rekeys, and the
// target knows that.
func (k *controller) rekeys() bool {
	return k.s.login.Features&wire.FeatureRekey != 0 && k.s.lead() == k.p
}

// check verifies the certificate of the target with what is in the folder now,
// and has a rekey show an own certificate that is new. A folder that cannot be
// read changes nothing.
func (k *controller) check(keys *sessionKeys, now time.Time) error {
	cfg, err := k.s.cfg.Security()
	if err != nil {
		k.s.cfg.Log.Warn("certificates not read again: those from before stay", "event", "certificates_kept", "error", err)
		return nil
	}
	if err := cfg.Recheck(keys.Result, now); err != nil {
		return &SecurityError{fmt.Errorf("the certificate of the target is not valid any more: %w", err)}
	}
	present := keys.shown
	if k.rekey.handshake != nil {
		present = shownBy(&k.rekey.cfg)
	}
	if shown := shownBy(&cfg); shown != nil && !bytes.Equal(shown, present) {
		k.rekey.due = now
	}
	return nil
}

// beginRekey sends the first message of a rekey that is due, once no other
// request is in flight and the last rekey has reached every connection.
func (k *controller) beginRekey(keys *sessionKeys, now time.Time) error {
	r := &k.rekey
	overdue := now.Sub(r.due)
	if r.handshake != nil || k.current != nil || k.c.FreeSends() == 0 || !k.rekeys() || overdue < 0 || overdue < confirmTimeout && !keys.Session.Confirmed() {
		return nil
	}
	cfg, err := k.s.cfg.Security()
	if err != nil {
		k.s.cfg.Log.Warn("no rekey: the certificates cannot be read", "event", "rekey_failed", "error", err, "next", rekeyRetry)
		r.due = now.Add(rekeyRetry)
		return nil
	}
	cfg.PathEpoch, cfg.Rekey = k.p.epoch, true
	h, err := handshake.NewInitiator(cfg)
	if err != nil {
		return &SecurityError{err}
	}
	r.handshake, r.cfg, r.due = h, cfg, now.Add(k.s.cfg.RekeyInterval)
	return k.stepRekey(nil)
}

// rekeyAnswer handles an answer of the target.
func (k *controller) rekeyAnswer(msg []byte) error {
	a := new(wire.Auth)
	if err := a.Decode(msg); err != nil {
		return fmt.Errorf("rekey: %w", err)
	}
	return k.stepRekey(a)
}

// stepRekey goes on with a rekey, with an answer of the target unless it
// begins.
func (k *controller) stepRekey(in *wire.Auth) error {
	r, now := &k.rekey, k.s.cfg.Scheduler.Now()
	out, done, err := r.handshake.Step(in)
	busy := new(handshake.BusyError)
	switch {
	case err == nil && !done:
		r.asked = now
		return sendControl(k.c, out)
	case err == nil:
		err = k.replaceKeys(newSessionKeys(r.handshake.Result(), &r.cfg, now))
	case errors.As(err, &busy):
		r.due, err = now.Add(max(busy.RetryAfter, leastRetry)), nil
	case errors.Is(err, handshake.ErrRejected):
		err = &SecurityError{fmt.Errorf("rekey: %w", err)}
	default:
		err = fmt.Errorf("%w: rekey: %w", errSession, err)
	}
	r.handshake = nil
	return err
}

// replaceKeys goes on with the keys of a rekey, and says so at once on the
// control connection.
func (k *controller) replaceKeys(keys *sessionKeys) error {
	r := &k.rekey
	k.s.keys.Load().Session.Rekey(keys.Session)
	k.s.keys.Store(keys)
	r.retires = keys.at.Add(confirmTimeout)
	k.s.cfg.Log.Debug("keys replaced", "event", "keys_replaced", "host", k.s.cfg.Host, "peer", keys.Names, "serial", keys.Serial)
	if k.keepalive.awaitingAck || k.c.FreeSends() == 0 {
		return nil // the next message says it
	}
	k.keepalive.awaitingAck = true
	return sendControl(k.c, &wire.KeepAlive{PathEpoch: k.p.epoch})
}

// endRekey ends what is in flight.
func (k *controller) endRekey() {
	if h := k.rekey.handshake; h != nil {
		h.Close()
	}
}

// CheckCertificates verifies the certificate of the target again, with what
// Config.Security says now, and begins a rekey if the own certificate has been
// renewed. It does not wait for that. A session whose target is not valid any
// more ends. The session checks them each hour too.
func (d *Device) CheckCertificates() { d.session().checkCertificates() }
