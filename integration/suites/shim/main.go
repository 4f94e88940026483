// Command shim stands on the PATH of a foreign test suite under the name of an
// NBD server, nbdkit, qemu-nbd or nbd-server, and starts viablk in its place:
// the suites start servers themselves, with command lines of their own. The
// server of that name runs command lines that viablk cannot.
//
// Its first argument is the name, the others are those of the server. In the
// environment are the program, VIABLK_SHIM_PROGRAM, a folder for files of the
// shims, VIABLK_SHIM_FOLDER, VIABLK_SHIM_CHAIN if clients are to get to the
// disk by way of a target and an initiator, and PATH, where the shims come
// first and the real servers behind them. Each start appends a line to the file
// "starts" in the folder: which server it became, and why.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The environment of a shim.
const (
	programVariable = "VIABLK_SHIM_PROGRAM"
	folderVariable  = "VIABLK_SHIM_FOLDER"
	chainVariable   = "VIABLK_SHIM_CHAIN"
)

// errForeign wraps the reasons why viablk cannot stand in for a command.
var errForeign = errors.New("left to the foreign server")

// errNothing says that a command serves no disk: it asks the server something.
var errNothing = errors.New("no disk")

// foreign returns such a reason.
func foreign(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errForeign, fmt.Sprintf(format, args...))
}

// parsers translate the command lines of servers.
var parsers = map[string]func(args []string) (*command, error){
	"nbdkit":     parseNbdkit,
	"qemu-nbd":   parseQemuNbd,
	"nbd-server": parseNbdServer,
}

func main() {
	if len(os.Args) < 2 || parsers[os.Args[1]] == nil {
		fail(fmt.Errorf("usage: shim NAME [ARGUMENT…]"))
	}
	name, args := os.Args[1], os.Args[2:]
	if slices.ContainsFunc(args, isQuestion) {
		fail(become(name, args))
	}
	c, err := parsers[name](args)
	if err == nil {
		err = c.prepare()
	}
	if errors.Is(err, errNothing) {
		fail(become(name, args))
	}
	if errors.Is(err, errForeign) {
		note("theirs", name, args, err.Error())
		fail(become(name, args))
	}
	if err == nil {
		note("ours", name, args, c.String())
		err = c.run()
	}
	if err != nil {
		fail(fmt.Errorf("%s: %w", strings.Join(os.Args[1:], " "), err))
	}
}

// isQuestion reports whether an argument asks a server about itself. Suites ask
// what the server can do before they start it.
func isQuestion(arg string) bool {
	return slices.Contains([]string{"--version", "--help", "--dump-plugin", "--dump-config"}, arg)
}

// fail ends the process.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "shim:", err)
	os.Exit(1)
}

// note appends a line to the file of starts, in one piece.
func note(who, name string, args []string, what string) {
	f, err := os.OpenFile(filepath.Join(os.Getenv(folderVariable), "starts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fail(err)
	}
	line := fmt.Sprintf("%s\t%s %q\t%s", who, name, args, strings.ReplaceAll(what, "\n", " "))
	if _, err := f.WriteString(line + "\n"); err != nil {
		fail(err)
	}
	f.Close()
}

// become replaces the process by the next program of that name on the PATH.
func become(name string, args []string) error {
	path, err := other(name)
	if err != nil {
		return err
	}
	return syscall.Exec(path, append([]string{name}, args...), os.Environ())
}

// other returns the second program of a name on the PATH: the first is the
// shim.
func other(name string) (string, error) {
	first := true
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		path, err := exec.LookPath(filepath.Join(folder, name))
		if err != nil {
			continue
		}
		if !first {
			return path, nil
		}
		first = false
	}
	return "", fmt.Errorf("no other %s on the PATH", name)
}
