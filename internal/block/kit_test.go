package block_test

import (
	"testing"

	"github.com/pojntfx/go-nbd/pkg/backend"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
)

func TestServedBackend(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) block.Device {
		memory := backend.NewMemoryBackend(make([]byte, block.PayloadLimit))
		device, err := block.FromBackend(memory, block.BackendOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return device
	}, backendtest.Options{})
}
