package cm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// cookies makes and checks the cookies of requesters. It keeps no state of a
// requester, and allocates only when the key changes.
type cookies struct {
	keys  [2]hash.Hash // the key of now, and the one before; nil at first
	until time.Duration

	named [cookieNamed]byte
	sum   [sha256.Size]byte
}

// cookieLife is how long a key makes cookies; it is valid as long again.
const cookieLife = 2 * time.Minute

// A cookie names kind, address, port, GUID and ID of the requester. Of an
// end of another implementation a cookie names neither port nor ID: each REQ of
// rdma_cm has another one, and the port may depend on it.
const cookieNamed = 1 + 16 + 2 + 8 + 4

// code returns the code of a requester's cookie by one of the keys. It is valid
// until the next call.
func (k *cookies) code(by hash.Hash, from netip.AddrPort, c *connection) []byte {
	addr := plain(from.Addr()).As16()
	b := append(append(k.named[:0], 0), addr[:]...)
	b = binary.BigEndian.AppendUint64(b, c.guid)
	if c.sameKind {
		b[0] = 1
		b = binary.BigEndian.AppendUint16(b, from.Port())
		b = binary.BigEndian.AppendUint32(b, c.remoteID)
	}
	by.Reset()
	by.Write(b)
	return by.Sum(k.sum[:0])[:wire.CookieCode]
}

// renew changes the key if it is due.
func (k *cookies) renew(random func() uint64, now time.Duration) {
	if k.keys[0] != nil && now < k.until {
		return
	}
	k.keys[1] = k.keys[0]
	if now >= k.until+cookieLife {
		k.keys[1] = nil
	}
	var key [32]byte
	for i := 0; i < len(key); i += 8 {
		binary.NativeEndian.PutUint64(key[i:], random())
	}
	k.keys[0], k.until = hmac.New(sha256.New, key[:]), now+cookieLife
}

// holds reports whether a cookie is that of a requester.
func (k *cookies) holds(cookie []byte, from netip.AddrPort, c *connection) bool {
	for _, key := range k.keys {
		if key != nil && hmac.Equal(cookie, k.code(key, from, c)) {
			return true
		}
	}
	return false
}

// welcomes reports whether a request may take state. With Config.Unproven
// requests in progress, or UnprovenPerAddr of its address, it needs a cookie,
// which a REJ tells; the cookie is not for the consumer.
func (m *Manager) welcomes(from netip.AddrPort, c *connection, req *wire.REQ, now time.Duration) bool {
	cookie := wire.Cookie(req.Private[:])
	isFull := len(m.table.pending) >= m.cfg.Unproven || m.table.pendingOf(plain(from.Addr())) >= m.cfg.UnprovenPerAddr
	if cookie == nil && !isFull {
		return true
	}
	m.cookies.renew(m.cfg.Random, now)
	if cookie != nil && m.cookies.holds(cookie, from, c) {
		clear(req.Private[len(req.Private)-wire.CookieSize:])
		return true
	}
	if !isFull {
		return true // the consumer's data looks like a cookie
	}
	m.counters.Challenged++
	var data [wire.CookieSize]byte
	wire.PutCookie(data[:], m.cookies.code(m.cookies.keys[0], from, c))
	m.sendREJ(c, wire.RejectNoResources, nil, data[:])
	return false
}

// maxChallenges bounds the cookies that one request returns.
const maxChallenges = 8

// answerChallenge resends the REQ, with the cookie that a REJ asks for. It
// returns false if the REJ asks for none, or the REQ has no room.
func (m *Manager) answerChallenge(c *connection, rej *wire.REJ, private []byte, now time.Duration) bool {
	if c.state != reqSent || rej.Reason != wire.RejectNoResources || c.challenges == maxChallenges {
		return false
	}
	var req wire.REQ
	if req.Decode(c.message[:]) != wire.Accepted {
		return false
	}
	data := req.Private[:]
	filled := wire.Challenge(private, data, len(data))
	if filled == nil {
		return false
	}
	copy(data, filled)
	c.challenges++
	c.setMessage(&req)
	m.startRetransmit(c, now)
	return true
}
