//go:build !rbd || !cgo

package rbd_test

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/target/backend/rbd"
)

// A build without librbd fails with instructions.
func TestWithoutCeph(t *testing.T) {
	if _, err := rbd.Open(rbd.Config{Pool: "pool", Image: "image"}); !errors.Is(err, rbd.ErrNotBuilt) {
		t.Error(err)
	}
}
