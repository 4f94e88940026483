package initiator_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// serve runs a target with a disk in memory in this process, for the examples;
// a real one is another process. It returns its address and how to end it.
func serve() (host string, stop func()) {
	dir, err := os.MkdirTemp("", "viablk")
	check(err)
	disk, err := backend.Open("memory:64MiB", backend.Options{})
	check(err)
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	check(err)
	server, err := target.New(target.Config{
		NIC:     nic,
		Exports: []target.Export{{Name: "scratch", Description: "gone with the process", Device: disk}},
	})
	check(err)
	host = filepath.Join(dir, "target.sock")
	listener, err := server.Listen(host)
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	return host, func() {
		cancel()
		check(<-served)
		check(nic.Close())
		check(disk.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A remote disk is read and written like a file.
func Example() {
	host, stop := serve()
	defer stop()

	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	check(err)
	disk, err := initiator.Dial(context.Background(), initiator.Config{NIC: nic, Host: host, Export: "scratch"})
	check(err)
	fmt.Printf("%s: %d bytes\n", disk.Name(), disk.Size())

	_, err = disk.WriteAt([]byte("written over there"), 4096)
	check(err)
	check(disk.Sync()) // durable from here on, as far as the disk ever is

	b := make([]byte, 18)
	_, err = disk.ReadAt(b, 4096)
	check(err)
	fmt.Printf("%s\n", b)

	check(disk.Close())
	check(nic.Close())
	// Output:
	// scratch: 67108864 bytes
	// written over there
}

// Memory of Alloc that is used again and again is registered once: from then on
// data moves between it and the target without a copy.
func ExampleDevice_Alloc() {
	host, stop := serve()
	defer stop()

	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	check(err)
	disk, err := initiator.Dial(context.Background(), initiator.Config{
		NIC: nic, Host: host, Export: "scratch",
		CopyMode:    regcache.CopyZero, // for a fixed output: auto measures, and decides
		RegisterMax: 64 << 20,
	})
	check(err)

	buf, err := disk.Alloc(1 << 20)
	check(err)
	for i := range 8 {
		copy(buf, fmt.Sprintf("block %d", i))
		_, err = disk.WriteAt(buf, int64(i)<<20)
		check(err)
	}
	_, err = disk.ReadAt(buf, 3<<20)
	check(err)
	fmt.Printf("%s\n", buf[:7])
	fmt.Printf("%d registration\n", disk.Status().Copy.Cache.Registrations)

	check(disk.Free(buf))
	check(disk.Close())
	check(nic.Close())
	// Output:
	// block 3
	// 1 registration
}

// Any slice will do: it is copied, a part while another is on its way.
func ExampleDevice_ReadAt() {
	host, stop := serve()
	defer stop()

	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	check(err)
	disk, err := initiator.Dial(context.Background(), initiator.Config{NIC: nic, Host: host, Export: "scratch"})
	check(err)

	plain := []byte("from the heap of this program")
	_, err = disk.WriteAt(plain, 0)
	check(err)
	clear(plain)
	_, err = disk.ReadAt(plain, 0)
	check(err)
	fmt.Printf("%s, %d registrations\n", plain, disk.Status().Copy.Cache.Registrations)

	check(disk.Close())
	check(nic.Close())
	// Output:
	// from the heap of this program, 0 registrations
}

// The list of what a target has needs no attached disk.
func ExampleDiscover() {
	host, stop := serve()
	defer stop()

	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	check(err)
	list, err := initiator.Discover(context.Background(), initiator.Config{NIC: nic, Host: host})
	check(err)
	for _, x := range list {
		fmt.Printf("%s (%s): %d MiB, trim %v, read-only %v\n", x.Name, x.Description, x.Size>>20, x.CanTrim, x.ReadOnly)
	}
	check(nic.Close())
	// Output:
	// scratch (gone with the process): 64 MiB, trim true, read-only false
}
