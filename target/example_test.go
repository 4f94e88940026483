package target_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// A target opens a disk and a NIC, serves at an address until its context ends,
// and closes what it opened.
func Example() {
	dir, err := os.MkdirTemp("", "target")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	disk, err := backend.Open("memory:64MiB", backend.Options{})
	if err != nil {
		log.Fatal(err)
	}
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	if err != nil {
		log.Fatal(err)
	}
	server, err := target.New(target.Config{
		NIC:     nic,
		Exports: []target.Export{{Name: "scratch", Description: "gone with the process", Device: disk}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, x := range server.Status().Exports {
		fmt.Printf("%s: %d bytes, default %v, open %d times\n", x.Name, x.Size, x.Default, x.Opens)
	}

	listener, err := server.Listen(filepath.Join(dir, "target.sock"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()

	// For an orderly stop: finish the commands in flight, then stop.
	if err := server.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	cancel()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	if err := nic.Close(); err != nil {
		log.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// scratch: 67108864 bytes, default true, open 0 times
}
