package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdkernel"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/identity"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/verbs"
)

// The exit codes. Those from 64 on are of sysexits.h.
const (
	exitOK            = 0
	exitFailure       = 1
	exitFalse         = 2
	exitUsage         = 64
	exitDisk          = 74
	exitTryAgain      = 75
	exitVersion       = 76
	exitPermission    = 77
	exitConfiguration = 78
)

// exitHelp documents the exit codes.
const exitHelp = `Exit codes:
  0   success
  1   failure
  2   the condition asked for is false, status found a disk that waits or has failed, or health a process
  64  the command line is wrong
  74  a disk did not answer: requests of its clients have no answer
  75  unreachable, or in use by another process: try again later
  76  the target speaks another version of the protocol: upgrade the older end
  77  permission denied
  78  the configuration is wrong`

// exit is an error with its exit code. An exit without err is silent: the code
// is the answer.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usage is an error of the command line.
func usage(format string, arguments ...any) error {
	return &exit{exitUsage, fmt.Errorf(format, arguments...)}
}

// unreachable classifies the failure to connect to a server: it depends on the
// cause whether trying again helps.
func unreachable(err error) error {
	var name *net.DNSError
	var network net.Error
	var remote *net.OpError
	var certificates *pki.FileError
	switch {
	case errors.As(err, &certificates):
		return err // nothing was connected to
	case errors.As(err, &remote) && remote.Op == "remote error":
		return err // an alert of TLS: the server refuses who we are, or how we speak
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return err // which is a network error, too
	case errors.Is(err, fs.ErrPermission):
		return &exit{exitPermission, err}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF),
		errors.As(err, &name), errors.As(err, &network),
		errors.Is(err, via.ErrNotReachable), errors.Is(err, via.ErrNoMatch),
		errors.Is(err, via.ErrTimeout), errors.Is(err, via.ErrReject):
		return &exit{exitTryAgain, err}
	}
	return err
}

// exitCode returns the exit code of an error that is not nil.
func exitCode(err error) int {
	var withCode *exit
	var configuration *config.Error
	var certificates *pki.FileError
	var answer *answerCode
	var hang *hangingDisks
	switch {
	case errors.As(err, &withCode):
		return withCode.code
	case errors.As(err, &hang):
		return exitDisk
	case errors.As(err, &answer):
		return cmp.Or(adminExits[answer.code], exitFailure)
	case errors.As(err, &certificates):
		return pkiExitCode(certificates)
	case errors.As(err, &configuration) && configuration.FlagsOnly():
		return exitUsage
	case errors.As(err, &configuration), errors.Is(err, backend.ErrUsage), errors.Is(err, nbdkernel.ErrNoDriver),
		errors.Is(err, verbs.ErrNotBuilt), errors.Is(err, verbs.ErrNoDevice), errors.Is(err, verbs.ErrNoManager), errors.Is(err, verbs.ErrMemoryLock):
		return exitConfiguration
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return exitVersion
	case errors.Is(err, fs.ErrPermission):
		return exitPermission
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EBUSY), errors.Is(err, nbd.ErrInUse), errors.Is(err, backend.ErrLocked),
		errors.Is(err, nbdkernel.ErrBusy), errors.Is(err, verbs.ErrPortDown):
		return exitTryAgain
	case errors.Is(err, nbdkernel.ErrNotAttached), errors.Is(err, identity.ErrNoRecord), errors.Is(err, identity.ErrNotFailed):
		return exitFalse
	}
	return exitFailure
}

// openFilesHint says what to do about an error of too many open files.
func openFilesHint(err error) string {
	var limit unix.Rlimit
	if !errors.Is(err, syscall.EMFILE) || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return ""
	}
	return fmt.Sprintf(": raise their limit, which is %d (ulimit -n, or LimitNOFILE= of systemd)", limit.Cur)
}

// report prints an error as one line, or what is wrong with a configuration as
// a line for each problem, and returns the exit code.
func (a *app) report(err error) int {
	code := exitCode(err)
	var silent *exit
	if errors.As(err, &silent) && silent.err == nil {
		return code
	}
	messages := []string{strings.Join(strings.Fields(err.Error()), " ") + openFilesHint(err)}
	var configuration *config.Error
	if errors.As(err, &configuration) {
		messages = a.complaints(configuration)
	}
	if a.output == "json" {
		line, _ := json.Marshal(map[string]any{"error": map[string]any{"code": code, "message": strings.Join(messages, "; ")}})
		fmt.Fprintf(a.stderr, "%s\n", line)
		return code
	}
	for _, message := range messages {
		fmt.Fprintf(a.stderr, "viablk: %s\n", message)
	}
	return code
}
