// Package roce holds the tests of disks over RoCE between two hosts of a bed:
// bad networks, floods and garbage, and what captures of the packets say.
package roce
