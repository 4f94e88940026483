package backend

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0":                   0,
		"512":                 512,
		"512B":                512,
		"4k":                  4096,
		"4KiB":                4096,
		"1M":                  1 << 20,
		"1mib":                1 << 20,
		"1 GiB":               1 << 30,
		"1.5G":                3 << 29,
		"0.5KiB":              512,
		"2T":                  2 << 40,
		"3PiB":                3 << 50,
		"7E":                  7 << 60,
		"007":                 7,
		"1.0000":              1,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestRefusedSizes(t *testing.T) {
	for text, says := range map[string]string{
		"":                       "not a number",
		"G":                      "not a number",
		".5G":                    "not a number",
		"5.":                     "not a number",
		"1.2.3":                  "not a number",
		"-1":                     "no unit",
		"+1":                     "no unit",
		"0x10":                   "no unit",
		"1e3":                    "no unit",
		"1Q":                     "no unit",
		"1KiBs":                  "no unit",
		"1iB":                    "no unit",
		"1 \n":                   "no unit",
		"1KB":                    "write K or KiB",
		"10gb":                   "write G or GiB",
		"0.3":                    "whole number",
		"1.0001K":                "whole number",
		"8E":                     "more than",
		"9223372036854775808":    "more than",
		strings.Repeat("9", 500): "not a number",
	} {
		got, err := ParseSize(text)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ParseSize(%q) = %d, %v; want ErrUsage that says %q", text, got, err, says)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseSize(text)
		if err != nil {
			if !errors.Is(err, ErrUsage) {
				t.Errorf("ParseSize(%q): %v is not ErrUsage", text, err)
			}
			return
		}
		if again, err := ParseSize(strconv.FormatInt(n, 10)); n < 0 || err != nil || again != n {
			t.Errorf("ParseSize(%q) = %d, which parses as %d, %v", text, n, again, err)
		}
	})
}
