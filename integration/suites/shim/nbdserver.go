package main

import (
	"os"
	"path/filepath"
	"strings"
)

// parseNbdServer translates a command line of nbd-server, for one client on
// standard input: nbd-server -d -C FILE 0 [DISK].
func parseNbdServer(args []string) (*command, error) {
	c := &command{stdio: true}
	var rest []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-d":
		case "-C":
			if i++; i == len(args) {
				return nil, foreign("-C without a file")
			}
			if err := c.readConfig(args[i]); err != nil {
				return nil, err
			}
		default:
			if strings.HasPrefix(args[i], "-") {
				return nil, foreign("option %s", args[i])
			}
			rest = append(rest, args[i])
		}
	}
	if len(rest) == 0 || rest[0] != "0" || len(rest) > 2 {
		return nil, foreign("port and disk %q", rest)
	}
	if len(rest) == 2 {
		return c, c.serveFile("", rest[1])
	}
	return c, nil
}

// serveFile adds a disk.
func (c *command) serveFile(name, path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return foreign("%s is no regular file", path)
	}
	path, err = filepath.Abs(path)
	c.exports = append(c.exports, export{Name: name, Backend: "file:" + path})
	return err
}

// readConfig reads a configuration file of nbd-server.
func (c *command) readConfig(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch key {
		case "exportname":
			if err := c.serveFile(section, value); err != nil {
				return err
			}
		case "certfile":
			c.tls.certificates = filepath.Dir(value)
			c.tls.mode = max(c.tls.mode, "on")
		case "force_tls":
			c.tls.mode = "require"
		case "allowlist", "flush", "fua", "cacertfile", "keyfile":
		default:
			return foreign("key %s in %s", key, path)
		}
	}
	return nil
}
