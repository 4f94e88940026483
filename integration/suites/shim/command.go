package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is what a server was asked to do.
type command struct {
	exports []export
	tls     tlsOptions

	// Where clients come in: one of these, or the sockets that the process was
	// started with.
	stdio  bool
	socket string // of AF_UNIX
	port   string

	script         string // run it with the server's address, end with it
	scriptSocket   bool   // the script wants a socket with a name of our own
	pidFile        string // written when clients may connect
	background     bool   // return when clients may connect
	exitWithParent bool
}

// export is a disk, in the words of viablk's configuration.
type export struct {
	Name           string `json:"name"`
	Backend        string `json:"backend"`
	Description    string `json:"description,omitempty"`
	ReadOnly       bool   `json:"read_only,omitempty"`
	MinimumBlock   int64  `json:"minimum_block,omitempty"`
	PreferredBlock int64  `json:"preferred_block,omitempty"`
	MaximumPayload int64  `json:"maximum_payload,omitempty"`
}

// tlsOptions are the options about TLS.
type tlsOptions struct {
	mode         string
	certificates string
	verifyPeer   bool
}

// prepare checks what was parsed, and chooses what the server left open.
func (c *command) prepare() error {
	if len(c.exports) == 0 {
		return foreign("no disk")
	}
	if c.tls.mode != "" && c.tls.mode != "off" && c.tls.certificates == "" {
		return foreign("TLS without certificates")
	}
	if os.Getenv(chainVariable) != "" && len(c.exports) > 1 {
		return foreign("several disks through a chain, whose initiator serves one")
	}
	if c.scriptSocket {
		place, err := os.MkdirTemp("", "shim")
		if err != nil {
			return err
		}
		c.socket = filepath.Join(place, "socket")
	}
	return nil
}

// isGiven reports whether the process was started with sockets to listen on.
func isGiven() bool { return os.Getenv("LISTEN_FDS") != "" }

// arguments returns those of viablk.
func (c *command) arguments() ([]string, error) {
	config, err := c.writeConfig()
	if err != nil {
		return nil, err
	}
	subcommand, listen, export := "target", "--listen", ""
	if os.Getenv(chainVariable) != "" {
		subcommand, listen, export = "up", "--nbd", url.PathEscape(c.exports[0].Name)
	}
	args := []string{"viablk", subcommand, "--admin", "none", "--config", config}
	switch {
	case c.stdio:
		args = append(args, "--stdio")
	case c.socket != "":
		args = append(args, listen, "nbd+unix:///"+export+"?socket="+c.socket)
	case c.port != "":
		args = append(args, listen, "nbd://[::]:"+c.port+"/"+export, "--insecure")
	}
	return args, nil
}

// writeConfig writes the configuration of viablk.
func (c *command) writeConfig() (string, error) {
	nbd := map[string]any{}
	if c.tls.mode != "" {
		nbd["tls"] = c.tls.mode
	}
	if nbd["tls"] != nil && c.tls.mode != "off" {
		nbd["tls_certificates"], nbd["tls_verify_peer"] = c.tls.certificates, c.tls.verifyPeer
	}
	text, err := json.Marshal(map[string]any{
		"nbd": nbd, "target": map[string]any{"exports": c.exports},
		"log": map[string]any{"level": "error"}, // suites compare what is printed
	})
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(os.Getenv(folderVariable), "config-*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

func (c *command) String() string { return fmt.Sprintf("%+v", *c) }

// run serves. It returns only with an error.
func (c *command) run() error {
	args, err := c.arguments()
	if err != nil {
		return err
	}
	if c.exitWithParent {
		runtime.LockOSThread() // it is the thread's, and that of what the thread becomes
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
			return err
		}
	}
	if c.pidFile == "" && !c.background && c.script == "" {
		return syscall.Exec(os.Getenv(programVariable), args, os.Environ())
	}
	if c.stdio || isGiven() && c.script == "" { // clients are there already
		if err := c.writePID(os.Getpid()); err != nil {
			return err
		}
		return syscall.Exec(os.Getenv(programVariable), args, os.Environ())
	}
	return c.supervise(append(args, "-o", "json"))
}

// supervise runs viablk as a child until it ends, until the script has ended,
// or, in the background, until clients may connect.
func (c *command) supervise(args []string) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	server := exec.Command(os.Getenv(programVariable), args[1:]...)
	server.Stderr = os.Stderr
	if c.exitWithParent || !c.background {
		server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("viablk is not ready: %w, %w", err, server.Wait())
	}
	pid := os.Getpid()
	if c.background {
		pid = server.Process.Pid
	}
	if err := c.writePID(pid); err != nil {
		return err
	}
	if c.background {
		os.Exit(0)
	}
	go func() {
		for range signals {
			_ = server.Process.Signal(syscall.SIGTERM)
		}
	}()
	code := 0
	if c.script != "" {
		code = c.runScript()
		_ = server.Process.Signal(syscall.SIGTERM)
	}
	err = server.Wait()
	if c.scriptSocket {
		_ = os.Remove(filepath.Dir(c.socket))
	}
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// writePID writes the file with the process ID, in one piece, if there is one.
func (c *command) writePID(pid int) error {
	if c.pidFile == "" {
		return nil
	}
	if err := os.WriteFile(c.pidFile+".new", []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(c.pidFile+".new", c.pidFile)
}

// runScript runs the script with the variables that nbdkit gives it.
func (c *command) runScript() int {
	scheme := "nbd"
	if c.tls.mode == "require" {
		scheme = "nbds"
	}
	uri := scheme + "+unix:///" + c.exports[0].Name + "?socket=" + c.socket
	variables := "uri=" + quote(uri) + "\nunixsocket=" + quote(c.socket) + "\nnbd=" + quote("nbd:unix:"+c.socket) + "\n"
	script := exec.Command("/bin/sh", "-c", variables+c.script)
	script.Stdin, script.Stdout, script.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := script.Run(); err != nil {
		if script.ProcessState == nil || script.ProcessState.ExitCode() < 0 {
			fmt.Fprintln(os.Stderr, "shim: script:", err)
			return 1
		}
		return script.ProcessState.ExitCode()
	}
	return 0
}

// quote quotes text for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
