// Package rights tests that an export has the same clients over NBD and over
// every VIA provider: a table of identities, exports, listeners and modes.
package rights
