package testbed

import (
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

// FreeAddress returns an unused UDP address of this host.
func FreeAddress(t testing.TB) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	Must(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}
