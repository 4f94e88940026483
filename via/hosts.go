package via

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Limits of a table of hosts.
const (
	maxHostsBytes   = 1 << 20
	maxHostsLine    = 4 << 10 // bytes, without the line's end
	maxHostsEntries = 1 << 16 // pairs of address and name
	maxHostName     = 255     // bytes
)

// Hosts is a [NameService] over a table in the form of /etc/hosts. A line has
// an address and its names, separated by blanks:
//
//	# address            names
//	/run/viablk/a.sock   alpha disks   # the first name is the address's own
//	/run/viablk/b.sock   beta disks    # a second address of disks
//	/srv/my\040disk.sock gamma
//
// A # at the start of a field begins a comment. An address is any run of
// printable bytes; \ and three octal digits stand for a byte, so that \040 is a
// blank, \043 a # and \134 a backslash. Names are letters, digits, and . _ -
// after the first byte; case does not matter. A name has the addresses of all
// its lines, in their order; an address that stands on several lines has the
// first name of the first. Hosts does not change and is safe for concurrent
// use.
type Hosts struct {
	addresses map[string][]string // by name in lower case
	names     map[string]string   // by address
}

// ReadHosts reads a table from a file. An error of the table names its
// line; every error is an ErrNameService.
func ReadHosts(path string) (*Hosts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read hosts: %w: %w", ErrNameService, err)
	}
	defer func() { _ = f.Close() }()
	h, err := ParseHosts(f)
	if err != nil {
		return nil, fmt.Errorf("read hosts %s: %w", path, err)
	}
	return h, nil
}

// ParseHosts reads a table as [ReadHosts] does. It takes at most 1 MiB, lines
// of 4 KiB and 65,536 pairs of address and name.
func ParseHosts(r io.Reader) (*Hosts, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxHostsBytes+1))
	if err != nil {
		return nil, fmt.Errorf("hosts: %w: %w", ErrNameService, err)
	}
	if len(text) > maxHostsBytes {
		return nil, fmt.Errorf("hosts: more than %d bytes: %w", maxHostsBytes, ErrNameService)
	}
	p := hostsParser{
		hosts: &Hosts{addresses: make(map[string][]string), names: make(map[string]string)},
		known: make(map[hostsEntry]struct{}),
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if err := p.line(string(bytes.TrimSuffix(line, []byte("\n")))); err != nil {
			return nil, fmt.Errorf("hosts line %d: %w: %w", number, ErrNameService, err)
		}
	}
	return p.hosts, nil
}

// AddressesOf returns the addresses of a name in the order of the table.
func (h *Hosts) AddressesOf(_ context.Context, name string) ([]string, error) {
	if h == nil {
		return nil, fmt.Errorf("no table: %w", ErrNameService)
	}
	if err := checkHostName(name); err != nil { // beyond ASCII, case is another matter
		return nil, fmt.Errorf("%w: %w", ErrNameService, err)
	}
	found := h.addresses[strings.ToLower(name)]
	if found == nil {
		return nil, fmt.Errorf("no such name: %w", ErrNameService)
	}
	return slices.Clone(found), nil
}

// NameOf returns the name of an address as the table spells it.
func (h *Hosts) NameOf(_ context.Context, host string) (string, error) {
	if h == nil {
		return "", fmt.Errorf("no table: %w", ErrNameService)
	}
	name, ok := h.names[host]
	if !ok {
		return "", fmt.Errorf("no such address: %w", ErrNameService)
	}
	return name, nil
}

// hostsEntry is a pair of the table.
type hostsEntry struct{ name, address string }

// hostsParser fills a table line by line.
type hostsParser struct {
	hosts   *Hosts
	known   map[hostsEntry]struct{}
	entries int
}

// line adds a line, given without its end.
func (p *hostsParser) line(line string) error {
	if len(line) > maxHostsLine {
		return fmt.Errorf("%d bytes (limit %d)", len(line), maxHostsLine)
	}
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' })
	for i, f := range fields {
		if f[0] == '#' {
			fields = fields[:i]
			break
		}
	}
	if len(fields) == 0 {
		return nil
	}
	address, err := unescape(fields[0])
	if err != nil {
		return fmt.Errorf("address %q: %w", fields[0], err)
	}
	names := fields[1:]
	if len(names) == 0 {
		return fmt.Errorf("address %q has no name", fields[0])
	}
	for _, name := range names {
		if err := p.add(name, address); err != nil {
			return err
		}
	}
	if _, ok := p.hosts.names[address]; !ok {
		p.hosts.names[address] = names[0]
	}
	return nil
}

// add adds a pair; one that is there already stays where it is.
func (p *hostsParser) add(name, address string) error {
	if err := checkHostName(name); err != nil {
		return fmt.Errorf("name %q: %w", name, err)
	}
	if p.entries++; p.entries > maxHostsEntries {
		return fmt.Errorf("more than %d names", maxHostsEntries)
	}
	e := hostsEntry{strings.ToLower(name), address}
	if _, ok := p.known[e]; !ok {
		p.known[e] = struct{}{}
		p.hosts.addresses[e.name] = append(p.hosts.addresses[e.name], address)
	}
	return nil
}

func checkHostName(name string) error {
	if name == "" || len(name) > maxHostName {
		return fmt.Errorf("%d bytes (limit %d)", len(name), maxHostName)
	}
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return fmt.Errorf("%q at byte %d", c, i)
		}
	}
	return nil
}

// unescape replaces \ooo by the byte with that octal number.
func unescape(field string) (string, error) {
	out := make([]byte, 0, len(field))
	for i := 0; i < len(field); i++ {
		c := field[i]
		switch {
		case c < ' ' || c == 0x7f:
			return "", fmt.Errorf("control byte %#02x, which must be escaped", c)
		case c == '\\':
			value, ok := octal(field[i+1:])
			if !ok {
				return "", fmt.Errorf("no three octal digits below \\400 behind \\")
			}
			if value == 0 {
				return "", fmt.Errorf("a zero byte, which no address has")
			}
			c = value
			i += 3
		}
		out = append(out, c)
	}
	return string(out), nil
}

// octal reads the three octal digits at the start of s.
func octal(s string) (byte, bool) {
	if len(s) < 3 || s[0] < '0' || s[0] > '3' || s[1] < '0' || s[1] > '7' || s[2] < '0' || s[2] > '7' {
		return 0, false
	}
	return (s[0]-'0')<<6 | (s[1]-'0')<<3 | (s[2] - '0'), true
}
