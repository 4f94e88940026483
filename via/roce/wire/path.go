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
	pathAtLocalLID     = 0  // 0xffff
	pathAtRemoteLID    = 2  // 0xffff
	pathAtLocalGID     = 4  // IPv4 mapped to IPv6
	pathAtRemoteGID    = 20 // likewise
	pathAtFlow         = 36 // 0xfffff000 flow label, 0x3f packet rate
	pathAtTrafficClass = 40 // DSCP and ECN
	pathAtHopLimit     = 41 // 64
	pathAtServiceLevel = 42 // 0xf0 service level, 0x08 does not leave the subnet
	pathAtAckTimeout   = 43 // 0xf8
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
