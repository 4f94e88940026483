// Package session holds the tests of sessions between initiators and targets
// over shared memory: processes that are killed, ended and replaced under load,
// what they count, and what they leave behind.
package session
