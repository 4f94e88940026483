//go:build !olderwire

package wire

// thisVersion is the version that this build speaks, and no other: version 2
// added the writer of a disk and its generation to OpenRequest and
// OpenResponse, and flags to LogoutResponse.
const thisVersion = 2
