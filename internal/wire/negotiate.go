package wire

import "strconv"

// Role is what a connection is for. The zero Role is invalid.
type Role uint8

// The roles. The number 3 is reserved: a login with it is decoded, so that the
// target can refuse it with ReasonRole.
const (
	RoleControl Role = 1 + iota // sessions, exports, events: connection 0
	RoleIO                      // commands: connections 1 to n
	_
	RoleDiscover // list exports only, no session
	roleEnd
)

var roleNames = [roleEnd]string{
	RoleControl: "control", RoleIO: "io", RoleDiscover: "discover",
}

// String returns the name, or the number of a role this version does not know.
func (r Role) String() string {
	if r < roleEnd && roleNames[r] != "" {
		return roleNames[r]
	}
	return "role-" + strconv.FormatUint(uint64(r), 10)
}

// DataModes is a set of data modes, bit 1<<mode each.
type DataModes uint16

// The sets of one data mode.
const (
	ModesInline DataModes = 1 << ModeInline
	ModesPull   DataModes = 1 << ModePull
	ModesPlace  DataModes = 1 << ModePlace
	modesKnown            = ModesInline | ModesPull | ModesPlace
)

// Has reports whether the set contains m.
func (d DataModes) Has(m DataMode) bool { return d>>m&1 != 0 }

// Digest is a set of payload checksums in an offer, at most one in a choice.
type Digest uint8

// The payload checksums. Headers always have theirs.
const (
	DigestNone   Digest = 0
	DigestCRC32C Digest = 1 << 0
	digestKnown         = DigestCRC32C
)

// Seal is a set of ways to encrypt messages in an offer, at most one in a
// choice.
type Seal uint8

// The ways to encrypt, for fabrics in software.
const (
	SealNone   Seal = 0
	SealAESGCM Seal = 1 << 0
	sealKnown       = SealAESGCM
)

// AuthMethods is a set of ways to authenticate in an offer, at most one in a
// choice.
type AuthMethods uint16

// The ways to authenticate.
const (
	AuthNone AuthMethods = 0
	AuthPSK  AuthMethods = 1 << 0 // reserved: a pre-shared key

	AuthCertificates AuthMethods = 1 << 1 // TLS 1.3 in Auth messages
	authKnown                    = AuthPSK | AuthCertificates
)

// Features is a set of abilities of a session. A choice is a subset of the
// offer.
type Features uint32

// The features of a session.
const (
	FeatureImmediate Features = 1 << 0 // success may be answered by an immediate
	FeatureEvents    Features = 1 << 1 // the target may send events
	FeatureRekey     Features = 1 << 2 // a sealed session may get new keys
	featuresKnown             = FeatureImmediate | FeatureEvents | FeatureRekey
)

// PortalState is how well an address of the target serves.
type PortalState uint8

// The states of a portal.
const (
	PortalOptimized    PortalState = iota // use it
	PortalNonOptimized                    // use it if there is no better one
	PortalDraining                        // finish, start nothing
	PortalInaccessible                    // do not use it
	portalEnd
)

// LoginReason says why a login was refused, more finely than the status. A code
// that is not known here is shown as a number, with the text beside it.
type LoginReason uint16

// The reasons.
const (
	ReasonNone         LoginReason = iota // not refused
	ReasonVersion                         // no common version
	ReasonRole                            // the role is not served here
	ReasonHost                            // the host is on no access list
	ReasonSession                         // no such session to join
	ReasonGeneration                      // a newer process owns the session
	ReasonEpoch                           // a newer connection of the path exists
	ReasonConn                            // the connection index is wrong
	ReasonAuthRequired                    // the target wants a method not offered
	ReasonAuthFailed                      // the proof is wrong
	ReasonDataModes                       // no common data mode
	ReasonDigest                          // a digest or seal is demanded
	ReasonResources                       // memory or connections are used up
	ReasonDraining                        // the target is going down
	ReasonProtocol                        // the first message was no login
	ReasonFence                           // an older path is still being fenced
	reasonEnd
)

var reasonNames = [reasonEnd]string{
	ReasonNone: "none", ReasonVersion: "version", ReasonRole: "role",
	ReasonHost: "host", ReasonSession: "session",
	ReasonGeneration: "generation", ReasonEpoch: "epoch", ReasonConn: "conn",
	ReasonAuthRequired: "auth-required", ReasonAuthFailed: "auth-failed",
	ReasonDataModes: "data-modes", ReasonDigest: "digest",
	ReasonResources: "resources", ReasonDraining: "draining",
	ReasonProtocol: "protocol", ReasonFence: "fence",
}

// String returns the name, or the number of a reason this version does not
// know.
func (r LoginReason) String() string {
	if r < reasonEnd {
		return reasonNames[r]
	}
	return "reason-" + strconv.FormatUint(uint64(r), 10)
}
