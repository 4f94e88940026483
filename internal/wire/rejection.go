package wire

// Reasons of a connection that a target rejects before there is a login, see
// [github.com/viablk/viablk/via.ConnRequest.RejectFor].
const (
	RejectFull    = 1 // it has no place for another connection
	RejectLeaving = 2 // it drains, or ends
)
