package config

import "github.com/viablk/viablk/internal/bytesize"

// Size is a number of bytes. Its text form takes a binary unit: 4096, 64k,
// 64KiB, 1.5M and 1GiB are all understood; it is printed exactly.
type Size int64

// The binary units.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
	PiB Size = 1 << 50
	EiB Size = 1 << 60
)

// ParseSize reads a number of bytes as [bytesize.Parse] does.
func ParseSize(s string) (Size, error) {
	n, err := bytesize.Parse(s)
	return Size(n), err
}

// String returns the size with the largest unit that divides it.
func (s Size) String() string { return bytesize.Format(int64(s)) }

// MarshalText returns what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}
