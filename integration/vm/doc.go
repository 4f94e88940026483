// Package vm boots virtual machines for tests, with a real kernel: Debian's, in
// QEMU, on a processor that is emulated. Nothing is installed, and no right is
// needed, on the host.
//
// A machine consists of its memory. The kernel, its modules and the programs
// come out of packages that apt downloads once into a cache, and an archive of
// exactly what a test names is what the machine boots from. It ends with the
// test, and a change in it affects nothing else.
//
// Between test and machine there is a serial port with the service of package
// agent at its far end, network cables of which the test may hold an end and
// see each frame, and disks that are files of the host.
//
// The host is Debian on amd64. The tests of this package need apt, the tools
// that make deps installs, and the build tag vm; make test-vm runs them. A
// missing tool is a failure. debian.go fetches packages, library.go and
// module.go resolve dependencies, and kernel.go decompresses the kernel on the
// host, because the emulated processor would take longer for that than for the
// boot. The first process, guest, mounts, loads modules, reaps, and is also the
// modprobe of the kernel. Its child, agent, serves calls of net/rpc on a virtio
// serial port. A thread starts QEMU and waits for it; the kernel kills QEMU
// when that thread ends.
package vm
