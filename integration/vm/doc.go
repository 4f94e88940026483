// Package vm boots virtual machines for tests, with a real kernel: Debian's, in
// QEMU, on a processor that is emulated. Nothing is installed, and no right is
// needed, on the host.
//
// A machine consists of its memory. The kernel, its modules and the programs come
// out of packages that apt downloads once into a cache, and an archive of exactly
// what a test names is what the machine boots from. It ends with the test, and a
// change in it harms nobody.
//
// Between test and machine there is a serial port with the service of package
// agent at its far end, network cables of which the test may hold an end and see
// each frame, and disks that are files of the host.
//
// The host is Debian on amd64. The tests of this package need apt, the tools that
// make deps installs, and the build tag vm; make test-vm runs them. What is missing
// is a failure.
package vm
