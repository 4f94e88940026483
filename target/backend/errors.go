package backend

import "errors"

var (
	// ErrUsage means that a specification cannot be understood or asks for what
	// does not exist. The text says what to write instead.
	ErrUsage = errors.New("bad disk")

	// ErrLocked means that another process has the backing file open in a way
	// that excludes this one.
	ErrLocked = errors.New("in use")
)
