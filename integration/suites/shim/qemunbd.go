package main

import (
	"os"
	"path/filepath"
	"strings"
)

// parseQemuNbd translates a command line of qemu-nbd.
func parseQemuNbd(args []string) (*command, error) {
	c := &command{exports: make([]export, 1)}
	e, raw := &c.exports[0], false
	credentials := map[string]tlsOptions{} // by the ID of their object
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		next := func() string {
			if hasValue {
				return value
			}
			if i++; i == len(args) {
				return ""
			}
			return args[i]
		}
		switch name {
		case "-v", "--verbose", "-t", "--persistent":
		case "--fork":
			c.background = true
		case "-r", "--read-only":
			e.ReadOnly = true
		case "-e", "--shared":
			next() // how many clients at a time; viablk serves as many as it was told
		case "-f", "--format":
			if format := next(); format != "raw" {
				return nil, foreign("format %s", format)
			}
			raw = true
		case "-x", "--export-name":
			e.Name = next()
		case "-D", "--description":
			e.Description = next()
		case "-k", "--socket":
			c.socket = next()
		case "-p", "--port":
			c.port = next()
		case "--pid-file":
			c.pidFile = next()
		case "--object":
			if err := parseObject(next(), credentials); err != nil {
				return nil, err
			}
		case "--tls-creds":
			c.tls = credentials[next()]
		default:
			if strings.HasPrefix(name, "-") || e.Backend != "" {
				return nil, foreign("argument %s", args[i])
			}
			path, err := filepath.Abs(args[i])
			if err != nil {
				return nil, err
			}
			e.Backend = "file:" + path
		}
	}
	if e.Backend == "" {
		return nil, errNothing
	}
	if !raw { // then it cannot be changed by a write to half of a sector
		e.MinimumBlock = 512
	}
	return c, e.pad()
}

// pad rounds the size of a disk up to whole sectors, as qemu-nbd does: of a
// disk that is only read, in a copy.
func (e *export) pad() error {
	path := strings.TrimPrefix(e.Backend, "file:")
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() > 0 && st.Size()%512 == 0 {
		return err
	}
	if !e.ReadOnly || st.Size() > 1<<20 {
		return foreign("a disk of %d bytes, which is no multiple of 512", st.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	copied, err := makeFile("padded", (st.Size()+511)&^511, func(f *os.File, _ int64) error {
		_, err := f.WriteAt(content, 0)
		return err
	})
	e.Backend = "file:" + copied
	return err
}

// parseObject notes an object with credentials.
func parseObject(text string, credentials map[string]tlsOptions) error {
	kind, rest, _ := strings.Cut(text, ",")
	if kind != "tls-creds-x509" {
		return foreign("object %s", kind)
	}
	o, id := tlsOptions{mode: "require", verifyPeer: true}, ""
	for property := range strings.SplitSeq(rest, ",") {
		switch key, value, _ := strings.Cut(property, "="); key {
		case "id":
			id = value
		case "dir":
			o.certificates = value
		case "verify-peer":
			o.verifyPeer = value != "off" && value != "no"
		case "endpoint":
		default:
			return foreign("property %s of %s", key, kind)
		}
	}
	credentials[id] = o
	return nil
}
