// Package viatest is the conformance kit of package via. Every provider runs
// all of it:
//
//	func TestConformance(t *testing.T) {
//		viatest.Run(t, openFabric, nil)
//	}
//
// # Levels
//
// A case is named for the rule that it checks. It belongs to one of the three
// levels of VIPL conformance, each of which contains the one before:
//
//	early adopter   client and server connections, memory, Sends, both
//	                completion models, name service
//	functional      and RDMA Write, asynchronous errors, lost connections,
//	                protection tags, changed attributes and sizes,
//	                peer-to-peer connections, sleeping
//	full            and RDMA Read, notification, discovery
//
// A case runs at each reliability level at which its rule holds and which the
// provider claims in its limits, on connections of that level:
//
//	go test ./via/shm -run 'TestConformance/functional/delivery/WriteGathers$'
//	go test ./via/shm -run 'TestConformance/.*/reception'
//
// # Skips
//
// A provider skips the cases that it cannot pass by name, at all levels or one,
// with a true reason. The kit fails where a skip names nothing, where it has no
// reason, where what the case needs is claimed in the limits, and where a
// capability is missing that no skip tells of.
//
// # Rules of every case
//
// Each case gets a fabric of its own, drives every VI by one goroutine at a
// time, and afterwards destroys what it created: a NIC that then does not close
// fails the case, and so does a goroutine or a file descriptor that outlives
// it. In all cases the kit checks, beside the case's own rule, that the
// descriptors of each queue complete in the order of their posts and say what
// their completions say.
//
// The kit is modelled on the three levels of Intel's VI Architecture
// Conformance Suite, which is not available; passing it is not passing that
// suite.
package viatest
