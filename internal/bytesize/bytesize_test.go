package bytesize

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"0":                   0,
		"512":                 512,
		"512B":                512,
		"512b":                512,
		"4k":                  4096,
		"4KiB":                4096,
		"64kib":               64 << 10,
		"1M":                  1 << 20,
		"1mib":                1 << 20,
		"1 GiB":               1 << 30,
		"1.5G":                3 << 29,
		"0.5KiB":              512,
		"0.5p":                1 << 49,
		"2T":                  2 << 40,
		"3PiB":                3 << 50,
		"7E":                  7 << 60,
		"007":                 7,
		"1.0000":              1,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for text, says := range map[string]string{
		"":                       "not a number",
		"G":                      "not a number",
		".5G":                    "not a number",
		"5.":                     "not a number",
		"1.M":                    "not a number",
		".":                      "not a number",
		"1.2.3":                  "not a number",
		"1.2.3k":                 "not a number",
		"-1":                     "no unit",
		"+1":                     "no unit",
		"0x10":                   "no unit",
		"1e3":                    "no unit",
		"1Q":                     "no unit",
		"1x":                     "no unit",
		"1kk":                    "no unit",
		"1ki":                    "no unit",
		"1KiBs":                  "no unit",
		"1iB":                    "no unit",
		"1  k":                   "no unit",
		"1 \n":                   "no unit",
		"1kB":                    "write K or KiB",
		"1KB":                    "write K or KiB",
		"10gb":                   "write G or GiB",
		"0.3":                    "whole number",
		"1.5":                    "whole number",
		"1.0001K":                "whole number",
		"1.0000001k":             "whole number",
		"8E":                     "more than",
		"8.0E":                   "more than",
		"9223372036854775808":    "more than",
		"99999999999999999999":   "more than",
		strings.Repeat("9", 500): "not a number",
	} {
		got, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q) = %d, %v; want an error that says %q", text, got, err, says)
		}
	}
}

func TestApproximate(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0", 1023: "1023", 1024: "1.0KiB", 1536: "1.5KiB", 1<<20 - 1: "1.0MiB", 64 << 20: "64.0MiB",
		1<<64 - 1: "16.0EiB",
	} {
		if got := Approximate(n); got != want {
			t.Errorf("Approximate(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.IntRange(0, 62).Draw(t, "shift")
		want := rapid.Int64Range(0, 1<<62).Draw(t, "size") >> shift << (shift / 2)
		if got, err := Parse(Format(want)); err != nil || got != want {
			t.Fatalf("%d prints as %s, which is %d, %v", want, Format(want), got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"1GiB", "1.5M", "64k", "", "-1", "1e9", "1 GiB", "9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := Parse(text)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("%q is negative: %d", text, n)
		}
		if again, err := Parse(Format(n)); err != nil || again != n {
			t.Errorf("%q is %d, prints as %s, which is %d, %v", text, n, Format(n), again, err)
		}
	})
}
