package vm

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Config says what a machine consists of.
type Config struct {
	// CPUs is the number of processors; 0 means 2.
	CPUs int

	// Memory is in MiB; 0 means 512. The files of the machine are part of it.
	Memory int

	// Kernel is Debian's package that depends on the kernel's, KernelOfRelease or
	// KernelOfNext; empty means the one that VIABLK_VM_KERNEL names, or else
	// KernelOfRelease.
	Kernel string

	// Modules are loaded at boot, in order, each with its parameters behind it:
	// "nbd nbds_max=4". Their dependencies come with them. The kernel finds no
	// other modules.
	Modules []string

	// Tools are files out of Debian's packages: the package, a slash, and
	// either the name of a program ("xfsprogs/mkfs.xfs") or the path of a file
	// ("netbase/etc/protocols"), or of several with a pattern of path.Match.
	// The libraries of programs come with them. There are always dash as
	// /bin/sh, busybox's applets and a modprobe.
	Tools []string

	// Files are files of the host by their paths in the machine. Programs among
	// them may be dynamic if packages of Tools have their libraries; libc6 is
	// always there.
	Files map[string]string

	// Disks become /dev/vda and on.
	Disks []Disk

	// NICs become eth0 and on.
	NICs []NIC

	// Init is a program of the machine that becomes its first process when
	// modules are loaded and the agent runs, such as systemd; empty means that
	// the harness's own stays it.
	Init string

	// Limit is how long the machine may live; 0 means 15 minutes. Then it is
	// killed, and what the test waits for fails.
	Limit time.Duration
}

// Disk is a disk of a machine. The machine believes that it has a write cache;
// written data is in the file when the machine is killed, flushed or not. An
// NBD server gets every flush, and decides which data a kill loses.
type Disk struct {
	Path     string // of a file whose size is a multiple of 512 bytes
	NBD      string // in place of a file: UNIX socket of an NBD server, the default export
	ReadOnly bool
}

// file returns the disk as QEMU names it. A comma would end the option.
func (d Disk) file() string {
	if d.NBD != "" {
		d.Path = "nbd:unix:" + d.NBD
	}
	return strings.ReplaceAll(d.Path, ",", ",,")
}

// NIC is a network interface of a machine. It computes no checksum and cuts no
// packet for its driver.
type NIC struct {
	End     *End   // of the cable that is plugged in
	MAC     string // empty means an address of its own
	Address string // with prefix length; empty means that the interface stays down
	MTU     int    // bytes; 0 means 1500
}

// WithRDMA returns a copy with what RDMA by the kernel's software device
// rdma_rxe needs: after "rdma link add rxe0 type rxe netdev eth0" programs of
// libibverbs and librdmacm work in the machine, ibv_devinfo and ibv_rc_pingpong
// among them.
func (c Config) WithRDMA() Config {
	c.Modules = slices.Concat(c.Modules, []string{"rdma_rxe", "ib_uverbs", "rdma_ucm"})
	c.Tools = slices.Concat(c.Tools, []string{
		"iproute2/ip", "iproute2/rdma", "ibverbs-utils/ibv_devinfo", "ibverbs-utils/ibv_rc_pingpong",
		"ibverbs-providers/etc/libibverbs.d/rxe.driver",
		"ibverbs-providers/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so",
	})
	return c
}

// withDefaults returns a copy in which nothing is left to a default.
func (c Config) withDefaults() Config {
	c.Kernel = cmp.Or(c.Kernel, os.Getenv(kernelVariable), KernelOfRelease)
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.Memory == 0 {
		c.Memory = 512
	}
	if c.Limit == 0 {
		c.Limit = 15 * time.Minute
	}
	base := []string{"virtio_pci", "virtio_console"}
	if len(c.Disks) > 0 {
		base = append(base, "virtio_blk")
	}
	if len(c.NICs) > 0 {
		base = append(base, "virtio_net")
	}
	c.Modules = append(base, c.Modules...)
	c.Tools = append([]string{"busybox-static/busybox", "dash/dash"}, c.Tools...)
	c.NICs = slices.Clone(c.NICs)
	for i := range c.NICs {
		if c.NICs[i].MAC == "" {
			c.NICs[i].MAC = nextMAC()
		}
		if c.NICs[i].MTU == 0 {
			c.NICs[i].MTU = 1500
		}
	}
	return c
}

// packages returns the packages that the tools are in, and those of what
// programs load without saying so.
func (c Config) packages() []string {
	names := []string{"libc6", "libgcc-s1"}
	for _, tool := range c.Tools {
		name, _, _ := strings.Cut(tool, "/")
		names = append(names, name)
	}
	return names
}

// build makes the kernel and the archive to boot from, in a file.
func (c Config) build(archive string) (*kernel, error) {
	place, err := openCache()
	if err != nil {
		return nil, err
	}
	packages, err := fetchPackages(place, c.Kernel, c.packages())
	if err != nil {
		return nil, err
	}
	k, err := fetchKernel(place, packages)
	if err != nil {
		return nil, err
	}
	img, err := newImage(packages.folders)
	if err != nil {
		return nil, err
	}
	guest, err := guestProgram()
	if err != nil {
		return nil, err
	}
	img.entries["init"] = entry{content: guest, mode: 0o755}
	// The end of a thread loads it, of any program.
	if err := img.addLibrary(libraryFolder+"libgcc_s.so.1", "libgcc_s.so.1", "libc6"); err != nil {
		return nil, err
	}
	for _, tool := range c.Tools {
		if err := img.addTool(tool); err != nil {
			return nil, err
		}
	}
	for name, file := range c.Files {
		if err := img.addFile(name, file); err != nil {
			return nil, fmt.Errorf("file %s: %w", name, err)
		}
	}
	if err := img.addModules(k, c.Modules, c.Init); err != nil {
		return nil, err
	}
	return k, img.write(archive)
}
