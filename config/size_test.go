package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1": 1, "4096": 4096, "512b": 512, "64k": 64 * KiB, "64KiB": 64 * KiB, "64kib": 64 * KiB,
		"1.5M": MiB + 512*KiB, "1GiB": GiB, "2T": 2 * TiB, "7EiB": 7 * EiB, "0.5p": PiB / 2,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "k", "GiB", "-1", "+1", "1kB", "1 k", "1x", "1ki", "1iB", "1.2.3k", ".", "1.5", "1.0000001k", "8E",
		"9223372036854775808", "1e3", "0x10", "99999999999999999999", "8.0E", "1kk",
	} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q is accepted as %d", in, got)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: the complaint is not one line: %v", in, err)
		}
	}
}

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.IntRange(0, 62).Draw(t, "shift")
		want := Size(rapid.Int64Range(0, 1<<62).Draw(t, "size") >> shift << (shift / 2))
		got, err := ParseSize(want.String())
		if err != nil || got != want {
			t.Fatalf("%d prints as %s, which is %d, %v", want, want, got, err)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"1GiB", "1.5M", "64k", "", "-1", "1e9", "9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		size, err := ParseSize(in)
		if err != nil {
			return
		}
		if size < 0 {
			t.Fatalf("%q is negative: %d", in, size)
		}
		if again, err := ParseSize(size.String()); err != nil || again != size {
			t.Errorf("%q is %d, prints as %s, which is %d, %v", in, size, size, again, err)
		}
	})
}
