package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"testing"

	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/identity"
)

func TestExitCode(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("do it: %w", err) }
	problem := func(o config.Origin) error {
		return wrap(&config.Error{Problems: []config.Problem{{Key: "k", Origin: o, Message: "m"}}})
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), exitFailure},
		{usage("x"), exitUsage},
		{wrap(usage("x")), exitUsage},
		{&exit{code: exitFalse}, exitFalse},
		{problem(config.FromFlag), exitUsage},
		{problem(config.FromFile), exitConfiguration},
		{problem(config.FromEnvironment), exitConfiguration},
		{wrap(backend.ErrUsage), exitConfiguration},
		{wrap(&pki.FileError{Path: "k", Err: pki.ErrExposedKey}), exitConfiguration},
		{unreachable(wrap(&pki.FileError{Path: "k", Err: fs.ErrNotExist})), exitConfiguration},
		{wrap(&pki.FileError{Path: "k", Err: fs.ErrPermission}), exitPermission},
		{wrap(backend.ErrLocked), exitTryAgain},
		{wrap(identity.ErrNoRecord), exitFalse},
		{wrap(identity.ErrNotFailed), exitFalse},
		{wrap(syscall.EADDRINUSE), exitTryAgain},
		{wrap(syscall.EACCES), exitPermission},
		{wrap(syscall.EPERM), exitPermission},
		{wrap(fs.ErrPermission), exitPermission},
		{wrap(fs.ErrNotExist), exitFailure},
		{unreachable(wrap(fs.ErrNotExist)), exitTryAgain},
		{unreachable(wrap(fs.ErrPermission)), exitPermission},
		{unreachable(wrap(context.DeadlineExceeded)), exitTryAgain},
		{unreachable(wrap(&net.DNSError{})), exitTryAgain},
		{unreachable(wrap(&net.OpError{Err: syscall.ECONNREFUSED})), exitTryAgain},
		{unreachable(errors.New("unknown export")), exitFailure},
		{unreachable(usage("x")), exitUsage},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%#v: got %d, want %d", c.err, got, c.want)
		}
	}
}

func TestReportIsOneLine(t *testing.T) {
	err := errors.Join(errors.New("first"), errors.New("second\n\tline"))
	for output, want := range map[string]string{
		"table": "viablk: first second line\n",
		"json":  `{"error":{"code":1,"message":"first second line"}}` + "\n",
	} {
		var stderr bytes.Buffer
		a := &app{stderr: &stderr, output: output}
		if code := a.report(err); code != exitFailure || stderr.String() != want {
			t.Errorf("%s: got %d %q, want %q", output, code, stderr.String(), want)
		}
	}
	var stderr bytes.Buffer
	if code := (&app{stderr: &stderr}).report(&exit{code: 3}); code != 3 || stderr.Len() != 0 {
		t.Errorf("a silent exit gives %d and prints %q", code, stderr.String())
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"disk0": "disk0", "a b": "a b", "": "-", "a\tb": `"a\tb"`, "\x1b[31m": `"\x1b[31m"`, "é": "é", "\u202e": `"\u202e"`, "a\nb": `"a\nb"`,
	} {
		if got := show.Text(in); got != want {
			t.Errorf("%q prints as %s, want %s", in, got, want)
		}
	}
}
