package via

// ReliabilityLevel is what a connection promises (VIA 1.0 §2.5). The values
// are bits, so that a NIC can say which levels it has.
type ReliabilityLevel uint16

// The reliability levels.
const (
	UnreliableDelivery ReliabilityLevel = 1
	ReliableDelivery   ReliabilityLevel = 2
	ReliableReception  ReliabilityLevel = 4
)

// String returns the level's name.
func (l ReliabilityLevel) String() string {
	switch l {
	case UnreliableDelivery:
		return "unreliable delivery"
	case ReliableDelivery:
		return "reliable delivery"
	case ReliableReception:
		return "reliable reception"
	default:
		return "invalid reliability level"
	}
}

// ViAttributes are the attributes of a VI (VIP_VI_ATTRIBUTES). Reliability,
// MaxTransferSize and QoS must be equal at both ends of a connection.
type ViAttributes struct {
	Reliability     ReliabilityLevel
	MaxTransferSize uint32 // bytes one descriptor may transfer; 0 means the NIC's limit
	QoS             uint32 // undefined by VIA; compared only
	Ptag            Ptag
	EnableRdmaWrite bool // the peer may write to memory of this tag that allows it
	EnableRdmaRead  bool // the peer may read from memory of this tag that allows it
}

// MemAttributes are the attributes of a memory region (VIP_MEM_ATTRIBUTES).
type MemAttributes struct {
	Ptag            Ptag
	EnableRdmaWrite bool // peers may write to the region
	EnableRdmaRead  bool // peers may read from the region
}

// Limits are what a NIC can do (VIP_NIC_ATTRIBUTES). They do not change.
type Limits struct {
	MaxDiscriminatorLen    int              // bytes
	MaxRegisterBytes       uint64           // in all
	MaxRegisterRegions     int              //
	MaxRegisterBlockBytes  uint64           // in one region
	MaxVI                  int              //
	MaxDescriptorsPerQueue int              //
	MaxSegmentsPerDesc     int              // data segments; at least 252
	MaxCQ                  int              //
	MaxCQEntries           int              //
	MaxTransferSize        uint32           // bytes per descriptor; at least 32 KiB
	NativeMTU              uint32           // bytes per unit on the wire
	MaxPtags               int              //
	ReliabilityLevels      ReliabilityLevel // bits
	RdmaReadLevels         ReliabilityLevel // bits: levels at which RDMA Read works
	PostsCopy              bool             // only the goroutine that drives the VI touches memory, see CopyStep
	NamesRegions           bool             // handles of regions are the device's, see [Memory.Name]
	PinsMemory             bool             // pages that the owner of a region gives back stay the device's
}

// CopyStep is what a provider with PostsCopy moves of an RDMA operation at a
// time, in bytes, or a multiple of it, but for the end: of an operation that
// fails in between, what lies between two multiples from its beginning is moved
// or is not.
const CopyStep = 4096

// Address names an endpoint (VIP_NET_ADDRESS): the host part is the provider's,
// the discriminator tells services at one host apart.
type Address struct {
	Host          string
	Discriminator string
}

// String returns host and discriminator.
func (a Address) String() string { return a.Host + "#" + a.Discriminator }
