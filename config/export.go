package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/viablk/viablk/internal/access"
)

// maximumExportName is the longest export name in bytes that NBD allows.
const maximumExportName = 4096

// Export is one disk that the target serves. In a file it is a mapping, or the
// short form NAME=BACKEND that flags and the environment use.
type Export struct {
	// Name is what clients ask for. It is case-sensitive and may be empty.
	Name string `mapstructure:"name" json:"name"`

	// Backend is the specification of the disk, such as memory:1GiB.
	Backend string `mapstructure:"backend" json:"backend"`

	// Description is shown by discovery; it may be empty.
	Description string `mapstructure:"description" json:"description"`

	// Default makes the export also answer to the empty name.
	Default bool `mapstructure:"default" json:"default"`

	// ReadOnly refuses writes to the export.
	ReadOnly bool `mapstructure:"read_only" json:"read_only"`

	// Clients get the export, and ClientsReadOnly get it for reading: names in
	// verified certificates, user:NAME and uid:N. If there is either list, others
	// do not, and an empty one names no client. Without lists every client gets
	// it that a listener admits.
	Clients         []string `mapstructure:"clients" json:"clients,omitzero"`
	ClientsReadOnly []string `mapstructure:"clients_read_only" json:"clients_read_only,omitzero"`

	// MinimumBlock is what requests must be multiples of, in bytes. Zero means
	// what the disk needs.
	MinimumBlock Size `mapstructure:"minimum_block" json:"minimum_block,omitempty"`

	// PreferredBlock is the best size of a request in bytes. Zero means the
	// disk's.
	PreferredBlock Size `mapstructure:"preferred_block" json:"preferred_block,omitempty"`

	// MaximumPayload is the longest READ or WRITE in bytes. Zero means the
	// disk's.
	MaximumPayload Size `mapstructure:"maximum_payload" json:"maximum_payload,omitempty"`

	// Rotational says that the disk is rotational: seeks are expensive. The
	// disk decides if unset.
	Rotational *bool `mapstructure:"rotational" json:"rotational,omitempty"`

	// MultiConn promises that a flush covers all connections, or does not. It
	// is asked of the disk if unset.
	MultiConn *bool `mapstructure:"multi_conn" json:"multi_conn,omitempty"`

	// Limits are those of all clients together, SessionLimits those of each: of
	// a client, with all its connections, or of an initiator.
	Limits        Limits `mapstructure:"limits" json:"limits,omitzero"`
	SessionLimits Limits `mapstructure:"session_limits" json:"session_limits,omitzero"`
}

// String returns the short form, NAME=BACKEND, of what it has.
func (e Export) String() string { return e.Name + "=" + e.Backend }

// UnmarshalText reads the short form, NAME=BACKEND. The name ends at the first
// equals sign: a name with one in it needs the mapping. SPEC may begin with
// limits, limit:iops=N,bandwidth=SIZE,burst=TIME:, of which each may have
// session- before it.
func (e *Export) UnmarshalText(text []byte) error {
	name, spec, ok := strings.Cut(string(text), "=")
	if !ok {
		return fmt.Errorf("%q is not NAME=BACKEND, such as disk0=memory:1GiB", text)
	}
	all, session, spec, err := cutLimits(spec)
	if err != nil {
		return err
	}
	*e = Export{Name: name, Backend: spec, Limits: all, SessionLimits: session}
	return nil
}

// Rights returns the clients of the export and what they may do.
func (e Export) Rights() (*access.Rights, error) {
	r, err := access.Parse(e.Clients, e.ClientsReadOnly)
	if err != nil {
		return nil, fmt.Errorf("export %q: %w", e.Name, err)
	}
	return r, nil
}

// validate reports the first complaint about the export alone.
func (e Export) validate() error {
	if err := validateExportName(e.Name); err != nil {
		return err
	}
	if e.Backend == "" {
		return fmt.Errorf("export %q has no backend", e.Name)
	}
	if strings.HasPrefix(e.Backend, limitPrefix) {
		return fmt.Errorf("the backend of export %q begins with %s: write limits and session_limits beside it", e.Name, limitPrefix)
	}
	if err := cmp.Or(e.Limits.validate("limits"), e.SessionLimits.validate("session_limits")); err != nil {
		return fmt.Errorf("export %q: %w", e.Name, err)
	}
	if err := validateDescription(e.Description); err != nil {
		return fmt.Errorf("export %q: %w", e.Name, err)
	}
	if _, err := e.Rights(); err != nil {
		return err
	}
	for _, size := range [...]struct {
		key   string
		value Size
	}{{"minimum_block", e.MinimumBlock}, {"preferred_block", e.PreferredBlock}, {"maximum_payload", e.MaximumPayload}} {
		if size.value < 0 || size.value > maximumIO {
			return fmt.Errorf("%s of export %q is %v, not up to %v", size.key, e.Name, size.value, maximumIO)
		}
	}
	return nil
}

// validateDescription checks what NBD asks of a description.
func validateDescription(text string) error {
	if len(text) > maximumExportName || !utf8.ValidString(text) {
		return fmt.Errorf("the description is not UTF-8 of at most %d bytes", maximumExportName)
	}
	return nil
}

// validateExportName checks what NBD asks of an export name.
func validateExportName(name string) error {
	switch {
	case len(name) > maximumExportName:
		return fmt.Errorf("the export name has %d bytes, at most %d are allowed", len(name), maximumExportName)
	case !utf8.ValidString(name):
		return errors.New("the export name is not UTF-8")
	case strings.ContainsRune(name, 0):
		return errors.New("the export name contains a zero byte")
	}
	return nil
}
