package via

import "fmt"

// Error is a VIPL return code other than VIP_SUCCESS; the values are those of
// VIP_RETURN. Errors of this package wrap one: test with errors.Is.
type Error int

// The return codes of VIPL.
const (
	ErrNotDone            Error = 1  // VIP_NOT_DONE
	ErrInvalidParameter   Error = 2  // VIP_INVALID_PARAMETER
	ErrResource           Error = 3  // VIP_ERROR_RESOURCE
	ErrTimeout            Error = 4  // VIP_TIMEOUT
	ErrReject             Error = 5  // VIP_REJECT
	ErrInvalidReliability Error = 6  // VIP_INVALID_RELIABILITY_LEVEL
	ErrInvalidMTU         Error = 7  // VIP_INVALID_MTU
	ErrInvalidQoS         Error = 8  // VIP_INVALID_QOS
	ErrInvalidPtag        Error = 9  // VIP_INVALID_PTAG
	ErrInvalidRdmaRead    Error = 10 // VIP_INVALID_RDMAREAD
	ErrDescriptor         Error = 11 // VIP_DESCRIPTOR_ERROR
	ErrInvalidState       Error = 12 // VIP_INVALID_STATE
	ErrNameService        Error = 13 // VIP_ERROR_NAMESERVICE
	ErrNoMatch            Error = 14 // VIP_NO_MATCH
	ErrNotReachable       Error = 15 // VIP_NOT_REACHABLE
	ErrNotSupported       Error = 16 // VIP_ERROR_NOT_SUPPORTED
)

var errorText = [...]string{
	ErrNotDone:            "not done",
	ErrInvalidParameter:   "invalid parameter",
	ErrResource:           "resources exhausted or in use",
	ErrTimeout:            "timed out",
	ErrReject:             "rejected by the peer",
	ErrInvalidReliability: "reliability level not supported or different at the peer",
	ErrInvalidMTU:         "transfer size not supported or different at the peer",
	ErrInvalidQoS:         "quality of service not supported or different at the peer",
	ErrInvalidPtag:        "invalid protection tag",
	ErrInvalidRdmaRead:    "rdma read not supported",
	ErrDescriptor:         "descriptor completed in error",
	ErrInvalidState:       "invalid state",
	ErrNameService:        "name service error",
	ErrNoMatch:            "no listener at that address",
	ErrNotReachable:       "address not reachable",
	ErrNotSupported:       "not supported",
}

// RejectError is the ErrReject of a peer that gave a reason, see
// [ConnRequest.RejectFor].
type RejectError struct{ Reason byte }

// Error returns the text of ErrReject: reasons have a meaning to consumers.
func (*RejectError) Error() string { return ErrReject.Error() }

// Unwrap makes it an ErrReject.
func (*RejectError) Unwrap() error { return ErrReject }

// noObject refuses a call on a nil object, or on one that no call of the
// package made.
func noObject(doing string) error {
	return fmt.Errorf("%s: no such object: %w", doing, ErrInvalidParameter)
}

// Error returns the code's text.
func (e Error) Error() string {
	if e > 0 && int(e) < len(errorText) {
		return errorText[e]
	}
	return "unknown via error"
}
