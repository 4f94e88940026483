package backend

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// units are the factors of a size, by the letter in front of an optional "iB".
const units = "KMGTPE"

// ParseSize returns the bytes that a size names: a decimal number, which may have
// a fraction as long as the bytes are whole, and a unit. K, M, G, T, P and E, with
// or without "iB" behind them, are powers of 1024, in either case; B or nothing is
// bytes. KB, MB and so on are refused, because half of the world means 1000 by
// them. The error wraps [ErrUsage].
func ParseSize(s string) (int64, error) {
	number, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); i >= 0 {
		number, unit = s[:i], strings.TrimPrefix(s[i:], " ")
	}
	factor, err := parseUnit(s, unit)
	if err != nil {
		return 0, err
	}
	whole, fraction, dotted := strings.Cut(number, ".")
	if whole == "" || dotted && fraction == "" || strings.Contains(fraction, ".") || len(number) > 40 {
		return 0, fmt.Errorf("%w: size %q is not a number with a unit, such as 10GiB", ErrUsage, s)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("%w: size %q is not a number with a unit, such as 10GiB", ErrUsage, s)
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	switch {
	case !value.IsInt():
		return 0, fmt.Errorf("%w: size %q is not a whole number of bytes", ErrUsage, s)
	case value.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, fmt.Errorf("%w: size %q is more than 2^63-1 bytes", ErrUsage, s)
	}
	return value.Num().Int64(), nil
}

// parseUnit returns the bytes of a unit of the size s.
func parseUnit(s, unit string) (int64, error) {
	upper := strings.ToUpper(unit)
	if upper == "" || upper == "B" {
		return 1, nil
	}
	power := strings.IndexByte(units, upper[0])
	switch {
	case power < 0:
	case len(upper) == 1, upper[1:] == "IB":
		return 1 << (10 * (power + 1)), nil
	case upper[1:] == "B":
		letter := upper[:1]
		return 0, fmt.Errorf("%w: size %q: %sB means 1000 to some and 1024 to others: write %s or %siB for 1024",
			ErrUsage, s, letter, letter, letter)
	}
	return 0, fmt.Errorf("%w: size %q has no unit of %s, with or without iB", ErrUsage, s, strings.Join(strings.Split(units, ""), ", "))
}
