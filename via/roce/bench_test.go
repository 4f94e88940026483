package roce_test

import (
	"testing"

	"github.com/viablk/viablk/via/viatest"
)

// BenchmarkKit measures between two NICs of this process.
func BenchmarkKit(b *testing.B) {
	b.Run("127.0.0.1", func(b *testing.B) { viatest.Bench(b, openUDP("127.0.0.1")) })
	b.Run("::1", func(b *testing.B) { viatest.Bench(b, openUDP("::1")) })
}
