package via

import (
	"encoding/binary"
	"fmt"
)

// The connect message: what both ends must agree on, carried by the provider.
const (
	helloMagic   = 0x4156 // "VA"
	helloVersion = 1
	helloFixed   = 16

	helloRdmaWrite = 1
	helloRdmaRead  = 2
	helloPeer      = 4 // a peer-to-peer request: the discriminator is a digest

	// MaxDiscriminatorLen bounds the discriminator, so that a connect message
	// fits the 56 bytes that RDMA CM leaves to consumers.
	MaxDiscriminatorLen = 40 // bytes
)

// Refusal reasons in a reply. A peer-to-peer request whose attributes do not
// match is refused with the return code of the attribute, from 6 to 8.
const (
	refuseReject  = 1
	refuseNoMatch = 2
	refuseInvalid = 3
)

// hello is a connect message.
type hello struct {
	attrs         ViAttributes
	discriminator string
	peer          bool
}

func encodeHello(h hello) []byte {
	b := make([]byte, helloFixed+len(h.discriminator))
	binary.LittleEndian.PutUint16(b[0:], helloMagic)
	b[2] = helloVersion
	if h.attrs.EnableRdmaWrite {
		b[3] |= helloRdmaWrite
	}
	if h.attrs.EnableRdmaRead {
		b[3] |= helloRdmaRead
	}
	if h.peer {
		b[3] |= helloPeer
	}
	binary.LittleEndian.PutUint16(b[4:], uint16(h.attrs.Reliability))
	b[6] = byte(len(h.discriminator))
	binary.LittleEndian.PutUint32(b[8:], h.attrs.MaxTransferSize)
	binary.LittleEndian.PutUint32(b[12:], h.attrs.QoS)
	copy(b[helloFixed:], h.discriminator)
	return b
}

// decodeHello decodes a connect message from the peer. Fabrics that carry it in
// a field of a fixed size fill that with zeros.
func decodeHello(b []byte) (hello, error) {
	if len(b) < helloFixed || binary.LittleEndian.Uint16(b) != helloMagic || b[2] != helloVersion {
		return hello{}, fmt.Errorf("connect message of %d bytes is not ours: %w", len(b), ErrInvalidParameter)
	}
	n := int(b[6])
	if b[3]&^(helloRdmaWrite|helloRdmaRead|helloPeer) != 0 || b[7] != 0 || n > MaxDiscriminatorLen || len(b) < helloFixed+n || !zero(b[helloFixed+n:]) {
		return hello{}, fmt.Errorf("malformed connect message: %w", ErrInvalidParameter)
	}
	return hello{
		attrs: ViAttributes{
			Reliability:     ReliabilityLevel(binary.LittleEndian.Uint16(b[4:])),
			MaxTransferSize: binary.LittleEndian.Uint32(b[8:]),
			QoS:             binary.LittleEndian.Uint32(b[12:]),
			EnableRdmaWrite: b[3]&helloRdmaWrite != 0,
			EnableRdmaRead:  b[3]&helloRdmaRead != 0,
		},
		discriminator: string(b[helloFixed : helloFixed+n]),
		peer:          b[3]&helloPeer != 0,
	}, nil
}

// zero reports whether there are zeros only.
func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}
