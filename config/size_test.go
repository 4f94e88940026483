package config

import "testing"

// Sizes of the configuration and of backends follow one rule.
func TestSizeText(t *testing.T) {
	var s Size
	if err := s.UnmarshalText([]byte("1.5 MiB")); err != nil || s != MiB+512*KiB {
		t.Errorf("1.5 MiB is %d, %v", s, err)
	}
	if text, err := s.MarshalText(); err != nil || string(text) != "1536KiB" {
		t.Errorf("1.5 MiB prints as %s, %v", text, err)
	}
	for _, refused := range []string{"1kB", "1.M", "", "-1"} {
		if err := s.UnmarshalText([]byte(refused)); err == nil {
			t.Errorf("%q is accepted as %d", refused, s)
		}
	}
}
