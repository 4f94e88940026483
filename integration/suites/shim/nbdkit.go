package main

import (
	"slices"
	"strings"
)

// nbdkitOptions are the options of nbdkit that viablk has a counterpart of, or
// that change nothing that a client sees. Those with a value end in "=".
var nbdkitOptions = map[string]func(c *command, value string){
	"-s":  func(c *command, _ string) { c.stdio = true },
	"-f":  func(c *command, _ string) { c.background = false },
	"-v":  func(*command, string) {},
	"-n":  func(*command, string) {},
	"-D=": func(*command, string) {},
	"-t=": func(*command, string) {},
	"-r":  func(c *command, _ string) { c.exports[0].ReadOnly = true },
	"-U=": func(c *command, value string) {
		if value == "-" {
			c.scriptSocket = true
		} else {
			c.socket = value
		}
	},
	"-p=":                 func(c *command, value string) { c.port = value },
	"-P=":                 func(c *command, value string) { c.pidFile = value },
	"--run=":              func(c *command, value string) { c.script = value },
	"--exit-with-parent":  func(c *command, _ string) { c.exitWithParent, c.background = true, false },
	"--tls=":              func(c *command, value string) { c.tls.mode = value },
	"--tls-certificates=": func(c *command, value string) { c.tls.certificates = value },
	"--tls-verify-peer":   func(c *command, _ string) { c.tls.verifyPeer = true },
	"--filter=":           func(*command, string) {}, // see disk
	"--newstyle":          func(*command, string) {},
}

// nbdkitLong are long names of options with a short one.
var nbdkitLong = map[string]string{
	"--single": "-s", "--foreground": "-f", "--no-fork": "-f", "--verbose": "-v", "--readonly": "-r",
	"--unix": "-U", "--port": "-p", "--pidfile": "-P", "--threads": "-t", "--debug": "-D",
}

// parseNbdkit translates a command line of nbdkit.
func parseNbdkit(args []string) (*command, error) {
	c := &command{exports: make([]export, 1), background: !isGiven()}
	var filters, rest []string
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		if long := nbdkitLong[name]; long != "" {
			name = long
		}
		switch {
		case !strings.HasPrefix(name, "-") || name == "-":
			rest = append(rest, args[i])
			continue
		case len(name) > 2 && name[1] != '-': // several of one letter
			var single []string
			for _, letter := range name[1:] {
				single = append(single, "-"+string(letter))
			}
			args = slices.Insert(slices.Clone(args), i+1, single...)
			continue
		}
		set := nbdkitOptions[name]
		if takesValue := nbdkitOptions[name+"="]; takesValue != nil {
			if set = takesValue; !hasValue {
				if i++; i == len(args) {
					return nil, foreign("%s without a value", name)
				}
				value = args[i]
			}
		}
		if set == nil {
			return nil, foreign("option %s", name)
		}
		set(c, value)
		if name == "--filter" {
			filters = append(filters, value)
		}
	}
	if c.stdio || c.script != "" {
		c.background = false
	}
	if len(rest) == 0 {
		return nil, foreign("no plugin")
	}
	readOnly := c.exports[0].ReadOnly
	if err := c.disk(filters, rest[0], rest[1:]); err != nil {
		return nil, err
	}
	for i := range c.exports {
		c.exports[i].ReadOnly = c.exports[i].ReadOnly || readOnly
	}
	return c, nil
}
