package wire

// REP accepts a connection. Its Starting PSN is the first PSN that its receiver
// sends.
type REP struct {
	TID                uint64 // of the REQ
	LocalID            uint32 // the sender's name for the connection
	RemoteID           uint32 // LocalID of the REQ
	QKey               uint32 // reliable datagram only
	LocalQP            uint32 // 24 bits
	LocalEECN          uint32 // 24 bits; reliable datagram only
	StartingPSN        PSN
	ResponderResources uint8 // RDMA reads and atomics that the sender serves at once
	InitiatorDepth     uint8 // RDMA reads and atomics that the sender has in flight
	TargetAckDelay     Timeout
	Failover           uint8 // 2 bits: 0 the alternate path is accepted
	EndToEnd           bool  // the sender honours credits
	RNRRetryCount      uint8 // 3 bits; 7: no limit
	SRQ                bool
	LocalGUID          uint64 // of the sender's channel adapter
	Private            [repPrivateSize]byte
}

// Offsets of a REP, after the header of the MAD.
const (
	repAtLocalID            = 0
	repAtRemoteID           = 4
	repAtQKey               = 8  // 0
	repAtLocalQP            = 12 // 3 bytes
	repAtLocalEECN          = 16 // 3 bytes; 0, or extension: the sender's room
	repAtStartingPSN        = 20 // 3 bytes
	repAtResponderResources = 24
	repAtInitiatorDepth     = 25
	repAtTarget             = 26 // 0xf8 ACK delay, 0x06 failover, 0x01 credits
	repAtRetry              = 27 // 0xe0 RNR retry count, 0x10 SRQ
	repAtLocalGUID          = 28
	repAtPrivate            = 36
	repSize                 = MADSize - madSize
	repPrivateSize          = repSize - repAtPrivate
)

// Encode implements [Message].
func (m *REP) Encode(b []byte) int {
	b = startMAD(b, AttributeREP, m.TID)
	be.PutUint32(b[repAtLocalID:], m.LocalID)
	be.PutUint32(b[repAtRemoteID:], m.RemoteID)
	be.PutUint32(b[repAtQKey:], m.QKey)
	putUint24(b[repAtLocalQP:], m.LocalQP)
	putUint24(b[repAtLocalEECN:], m.LocalEECN)
	putUint24(b[repAtStartingPSN:], uint32(m.StartingPSN))
	b[repAtResponderResources] = m.ResponderResources
	b[repAtInitiatorDepth] = m.InitiatorDepth
	b[repAtTarget] = byte(m.TargetAckDelay)<<3 | m.Failover&3<<1 | bit(m.EndToEnd, 1)
	b[repAtRetry] = m.RNRRetryCount<<5 | bit(m.SRQ, 0x10)
	be.PutUint64(b[repAtLocalGUID:], m.LocalGUID)
	copy(b[repAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *REP) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeREP)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[repAtLocalID:])
	m.RemoteID = be.Uint32(b[repAtRemoteID:])
	m.QKey = be.Uint32(b[repAtQKey:])
	m.LocalQP = uint24(b[repAtLocalQP:])
	m.LocalEECN = uint24(b[repAtLocalEECN:])
	m.StartingPSN = PSN(uint24(b[repAtStartingPSN:]))
	m.ResponderResources = b[repAtResponderResources]
	m.InitiatorDepth = b[repAtInitiatorDepth]
	target := b[repAtTarget]
	m.TargetAckDelay = Timeout(target >> 3)
	m.Failover = target >> 1 & 3
	m.EndToEnd = target&1 != 0
	m.RNRRetryCount = b[repAtRetry] >> 5
	m.SRQ = b[repAtRetry]&0x10 != 0
	m.LocalGUID = be.Uint64(b[repAtLocalGUID:])
	copy(m.Private[:], b[repAtPrivate:])
	return Accepted
}
