package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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

// units are the units in ascending order; each letter is its prefix.
const units = "KMGTPE"

// ParseSize reads a number of bytes: a decimal number, which may have a
// fraction if it is followed by a unit, and one of b, k, m, g, t, p, e in
// either case, of which all but b may be followed by iB. The result is whole
// and not negative. Decimal units, such as kB, are refused: they would be
// mistaken for binary ones.
func ParseSize(s string) (Size, error) {
	number := strings.TrimRight(s, "bBiIkKmMgGtTpPeE")
	multiple, ok := unit(s[len(number):])
	if !ok || number == "" || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("%q is not a size: write bytes, or a number with a unit such as 64k or 1GiB", s)
	}
	if !strings.Contains(number, ".") {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n > math.MaxInt64/int64(multiple) {
			return 0, fmt.Errorf("size %q is too large", s)
		}
		return Size(n) * multiple, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	bytes := f * float64(multiple)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a size: the number is malformed", s)
	case bytes >= math.MaxInt64:
		return 0, fmt.Errorf("size %q is too large", s)
	case bytes != math.Trunc(bytes):
		return 0, fmt.Errorf("size %q is not a whole number of bytes", s)
	}
	return Size(bytes), nil
}

// unit returns the factor of a unit.
func unit(s string) (Size, bool) {
	if s == "" || strings.EqualFold(s, "b") {
		return 1, true
	}
	i := strings.Index(units, strings.ToUpper(s[:1]))
	if i < 0 || (len(s) > 1 && !strings.EqualFold(s[1:], "ib")) {
		return 0, false
	}
	return 1 << (10 * (i + 1)), true
}

// String returns the size with the largest unit that divides it.
func (s Size) String() string {
	n := int64(s)
	i := -1
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	if i < 0 {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10) + units[i:i+1] + "iB"
}

// MarshalText returns what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}
