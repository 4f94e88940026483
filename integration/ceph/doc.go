// Package ceph runs images of a real Ceph cluster through viablk: the device
// kit, locks and their fence, sizes, errors, an OSD that dies under load, and
// two targets of one image of which the second takes over.
//
// The cluster is one monitor and one OSD of Debian's packages on loopback, with
// its data in a folder that is gone afterwards. The daemons end with the tests.
// These have the build tag ceph, and need that of the backend, rbd; make
// test-ceph runs them.
package ceph
