package wire

// NoLID is the local identifier in paths over Ethernet, which has none.
const NoLID = 0xffff

// Path is one path of a REQ. The GIDs are IP addresses: netip.Addr.As16 of
// either kind.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID [16]byte
	FlowLabel           uint32 // 20 bits
	Rate                uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	ServiceLevel        uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          Timeout
}

// Offsets of a path.
const (
	pathAtLocalLID     = 0
	pathAtRemoteLID    = 2
	pathAtLocalGID     = 4
	pathAtRemoteGID    = 20
	pathAtFlow         = 36
	pathAtTrafficClass = 40
	pathAtHopLimit     = 41
	pathAtServiceLevel = 42
	pathAtAckTimeout   = 43
	pathSize           = 44
)

func (p *Path) encode(b []byte) {
	_ = b[pathSize-1]
	be.PutUint16(b[pathAtLocalLID:], p.LocalLID)
	be.PutUint16(b[pathAtRemoteLID:], p.RemoteLID)
	copy(b[pathAtLocalGID:], p.LocalGID[:])
	copy(b[pathAtRemoteGID:], p.RemoteGID[:])
	be.PutUint32(b[pathAtFlow:], p.FlowLabel<<12|uint32(p.Rate&0x3f))
	b[pathAtTrafficClass] = p.TrafficClass
	b[pathAtHopLimit] = p.HopLimit
	b[pathAtServiceLevel] = p.ServiceLevel<<4 | bit(p.SubnetLocal, 8)
	b[pathAtAckTimeout] = byte(p.AckTimeout) << 3
}

func (p *Path) decode(b []byte) {
	_ = b[pathSize-1]
	p.LocalLID = be.Uint16(b[pathAtLocalLID:])
	p.RemoteLID = be.Uint16(b[pathAtRemoteLID:])
	copy(p.LocalGID[:], b[pathAtLocalGID:])
	copy(p.RemoteGID[:], b[pathAtRemoteGID:])
	flow := be.Uint32(b[pathAtFlow:])
	p.FlowLabel = flow >> 12
	p.Rate = uint8(flow & 0x3f)
	p.TrafficClass = b[pathAtTrafficClass]
	p.HopLimit = b[pathAtHopLimit]
	p.ServiceLevel = b[pathAtServiceLevel] >> 4
	p.SubnetLocal = b[pathAtServiceLevel]&8 != 0
	p.AckTimeout = Timeout(b[pathAtAckTimeout] >> 3)
}
