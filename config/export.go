package config

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maximumExportName is the longest export name in bytes that NBD allows.
const maximumExportName = 4096

// Export is one disk that the target serves. In a file it is a mapping, or the
// short form NAME=SPEC that flags and the environment use.
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
}

// String returns the short form, NAME=SPEC.
func (e Export) String() string { return e.Name + "=" + e.Backend }

// UnmarshalText reads the short form, NAME=SPEC. The name ends at the first
// equals sign: a name with one in it needs the mapping.
func (e *Export) UnmarshalText(text []byte) error {
	name, spec, ok := strings.Cut(string(text), "=")
	if !ok {
		return fmt.Errorf("%q is not NAME=SPEC, such as disk0=memory:1GiB", text)
	}
	*e = Export{Name: name, Backend: spec}
	return nil
}

// validate reports the first complaint about the export alone.
func (e Export) validate() error {
	if err := validateExportName(e.Name); err != nil {
		return err
	}
	if e.Backend == "" {
		return fmt.Errorf("export %q has no backend", e.Name)
	}
	if len(e.Description) > maximumExportName || !utf8.ValidString(e.Description) {
		return fmt.Errorf("the description of export %q is not UTF-8 of at most %d bytes", e.Name, maximumExportName)
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
