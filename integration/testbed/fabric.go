package testbed

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

// Fabric is a way to connect a target and initiators of one process.
type Fabric struct {
	Provider func() via.Provider
	Host     func(testing.TB) string // a free one, for a target
}

// Fabrics are the fabrics of every host, by the name of their provider.
var Fabrics = map[string]Fabric{
	"shm": {
		Provider: func() via.Provider { return shm.New(shm.Options{}) },
		Host:     func(t testing.TB) string { return filepath.Join(t.TempDir(), "target.sock") },
	},
	"roce": {
		Provider: func() via.Provider { return roce.New(roce.Options{}) },
		Host:     FreeAddress,
	},
}

// FreeAddress returns an unused UDP address of this host: a loopback address of
// its own, at a port that the kernel gives to no socket without one. It stays
// free while a target is away.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		at := fmt.Sprintf("127.66.%d.%d:14791", rand.IntN(256), 1+rand.IntN(254))
		c, err := net.ListenPacket("udp", at)
		if err == nil {
			Must(t, c.Close())
			return at
		}
	}
	t.Fatal("no address is free")
	return ""
}
