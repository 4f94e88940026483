package wire

// REQ requests a connection. Its Starting PSN is the first PSN that its
// receiver sends.
type REQ struct {
	TID                uint64 // of the handshake
	LocalID            uint32 // the sender's name for the connection
	VendorID           uint32 // 24 bits
	ServiceID          ServiceID
	LocalGUID          uint64 // of the sender's channel adapter
	Tag                uint64 // 0; extension: the tag of packets to the sender
	LocalQP            uint32 // 24 bits
	ResponderResources uint8  // RDMA reads and atomics that the sender serves at once
	LocalEECN          uint32 // 24 bits; reliable datagram only
	InitiatorDepth     uint8  // RDMA reads and atomics that the sender has in flight
	RemoteEECN         uint32 // 24 bits; reliable datagram only
	RemoteTimeout      Timeout
	Transport          Class // 2 bits: RC, UC, RD, or 3, see ExtendedTransport
	EndToEnd           bool  // the sender honours credits
	StartingPSN        PSN
	LocalTimeout       Timeout
	RetryCount         uint8 // 3 bits
	PKey               uint16
	MTU                MTU // 4 bits
	RDCExists          bool
	RNRRetryCount      uint8 // 3 bits; 7: no limit
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	ExtendedTransport  uint8 // 3 bits
	Primary, Alternate Path

	// Private begins with a [CMA] where ServiceID is of an IP port space.
	Private [reqPrivateSize]byte
}

// UserSize is the private data of a REQ that is left to the user of an IP
// service, bytes.
const UserSize = reqPrivateSize - CMASize

// Offsets of a REQ, after the header of the MAD.
const (
	reqAtLocalID            = 0
	reqAtVendorID           = 5 // 3 bytes
	reqAtServiceID          = 8 // 0x01060000 + port in the TCP port space
	reqAtLocalGUID          = 16
	reqAtTag                = 24 // reserved word and Q_Key: 0; extension: the tag
	reqAtLocalQP            = 32 // 3 bytes
	reqAtResponderResources = 35
	reqAtLocalEECN          = 36 // 3 bytes; 0, or extension: the sender's room
	reqAtInitiatorDepth     = 39
	reqAtRemoteEECN         = 40 // 3 bytes; 0
	reqAtTransport          = 43 // 0xf8 receiver's response time, 0x06 service, 0x01 credits
	reqAtStartingPSN        = 44 // 3 bytes
	reqAtRetry              = 47 // 0xf8 sender's response time, 0x07 retry count
	reqAtPKey               = 48
	reqAtMTU                = 50 // 0xf0 MTU, 0x08 RD channel, 0x07 RNR retries
	reqAtCMRetries          = 51 // 0xf0 retries, 0x08 SRQ, 0x07 extended transport
	reqAtPrimary            = 52
	reqAtAlternate          = 96 // zeros if there is none
	reqAtPrivate            = 140
	reqSize                 = MADSize - madSize
	reqPrivateSize          = reqSize - reqAtPrivate
)

// Encode implements [Message].
func (m *REQ) Encode(b []byte) int {
	b = startMAD(b, AttributeREQ, m.TID)
	be.PutUint32(b[reqAtLocalID:], m.LocalID)
	putUint24(b[reqAtVendorID:], m.VendorID)
	be.PutUint64(b[reqAtServiceID:], uint64(m.ServiceID))
	be.PutUint64(b[reqAtLocalGUID:], m.LocalGUID)
	be.PutUint64(b[reqAtTag:], m.Tag)
	putUint24(b[reqAtLocalQP:], m.LocalQP)
	b[reqAtResponderResources] = m.ResponderResources
	putUint24(b[reqAtLocalEECN:], m.LocalEECN)
	b[reqAtInitiatorDepth] = m.InitiatorDepth
	putUint24(b[reqAtRemoteEECN:], m.RemoteEECN)
	b[reqAtTransport] = byte(m.RemoteTimeout)<<3 | byte(m.Transport)&3<<1 | bit(m.EndToEnd, 1)
	putUint24(b[reqAtStartingPSN:], uint32(m.StartingPSN))
	b[reqAtRetry] = byte(m.LocalTimeout)<<3 | m.RetryCount&7
	be.PutUint16(b[reqAtPKey:], m.PKey)
	b[reqAtMTU] = byte(m.MTU)<<4 | bit(m.RDCExists, 8) | m.RNRRetryCount&7
	b[reqAtCMRetries] = m.MaxCMRetries<<4 | bit(m.SRQ, 8) | m.ExtendedTransport&7
	m.Primary.encode(b[reqAtPrimary:])
	m.Alternate.encode(b[reqAtAlternate:])
	copy(b[reqAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *REQ) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeREQ)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[reqAtLocalID:])
	m.VendorID = uint24(b[reqAtVendorID:])
	m.ServiceID = ServiceID(be.Uint64(b[reqAtServiceID:]))
	m.LocalGUID = be.Uint64(b[reqAtLocalGUID:])
	m.Tag = be.Uint64(b[reqAtTag:])
	m.LocalQP = uint24(b[reqAtLocalQP:])
	m.ResponderResources = b[reqAtResponderResources]
	m.LocalEECN = uint24(b[reqAtLocalEECN:])
	m.InitiatorDepth = b[reqAtInitiatorDepth]
	m.RemoteEECN = uint24(b[reqAtRemoteEECN:])
	transport := b[reqAtTransport]
	m.RemoteTimeout = Timeout(transport >> 3)
	m.Transport = Class(transport >> 1 & 3)
	m.EndToEnd = transport&1 != 0
	m.StartingPSN = PSN(uint24(b[reqAtStartingPSN:]))
	m.LocalTimeout = Timeout(b[reqAtRetry] >> 3)
	m.RetryCount = b[reqAtRetry] & 7
	m.PKey = be.Uint16(b[reqAtPKey:])
	m.MTU = MTU(b[reqAtMTU] >> 4)
	m.RDCExists = b[reqAtMTU]&8 != 0
	m.RNRRetryCount = b[reqAtMTU] & 7
	m.MaxCMRetries = b[reqAtCMRetries] >> 4
	m.SRQ = b[reqAtCMRetries]&8 != 0
	m.ExtendedTransport = b[reqAtCMRetries] & 7
	m.Primary.decode(b[reqAtPrimary:])
	m.Alternate.decode(b[reqAtAlternate:])
	copy(m.Private[:], b[reqAtPrivate:])
	return Accepted
}
