// Package interop proves that what via/roce speaks is RoCEv2: the kernel's own
// RDMA device and the programs of rdma-core are at the other end. Its tests
// need what the tests of package vm need.
package interop
