//go:build !verbs || !cgo

package verbs_test

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/verbs"
)

// A build without the provider fails with instructions.
func TestWithoutVerbs(t *testing.T) {
	_, err := via.OpenNic(verbs.New(verbs.Options{}), "")
	if !errors.Is(err, verbs.ErrNotBuilt) || !errors.Is(err, via.ErrResource) {
		t.Errorf("open a NIC: %v", err)
	}
	if _, err := verbs.Devices(); !errors.Is(err, verbs.ErrNotBuilt) {
		t.Errorf("list devices: %v", err)
	}
}
