// Package bytesize reads and prints sizes as command lines, configuration files
// and backends write them: 4096, 64k, 64KiB, 1.5M, 1 GiB.
package bytesize

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// units are the binary units in ascending order; each letter is a prefix.
const units = "KMGTPE"

// Parse returns the bytes that a size names: a decimal number, which may have a
// fraction as long as the bytes are whole, and a unit, which one space may
// precede. K, M, G, T, P and E, with or without "iB", are powers of 1024 in
// either case; B or nothing is bytes. Parse refuses KB, MB and so on, because
// some mean 1000 by them.
func Parse(s string) (int64, error) {
	number, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); i >= 0 {
		number, unit = s[:i], strings.TrimPrefix(s[i:], " ")
	}
	factor, err := parseUnit(s, unit)
	if err != nil {
		return 0, err
	}
	whole, fraction, dotted := strings.Cut(number, ".")
	malformed := fmt.Errorf("size %q is not a number with a unit, such as 64KiB or 10GiB", s)
	if whole == "" || dotted && fraction == "" || strings.Contains(fraction, ".") || len(number) > 40 {
		return 0, malformed
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, malformed
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	switch {
	case !value.IsInt():
		return 0, fmt.Errorf("size %q is not a whole number of bytes", s)
	case value.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, fmt.Errorf("size %q is more than 2^63-1 bytes", s)
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
		return 0, fmt.Errorf("size %q: %sB means 1000 to some and 1024 to others: write %s or %siB for 1024",
			s, letter, letter, letter)
	}
	return 0, fmt.Errorf("size %q has no unit of %s, with or without iB", s, strings.Join(strings.Split(units, ""), ", "))
}

// Format returns n with the largest unit that divides it; Parse reads it back.
func Format(n int64) string {
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

// Approximate returns n with three or four digits and a unit, for tables that
// people read.
func Approximate(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10)
	}
	f, i := float64(n), -1
	for f >= 1023.95 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + units[i:i+1] + "iB"
}
