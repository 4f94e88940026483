// Package viatest is the conformance kit of package via. Every provider runs all
// of it:
//
//	func TestConformance(t *testing.T) {
//		viatest.Run(t, openFabric, nil)
//	}
//
// A case is named for the rule that it checks and carries one of the three
// levels of VIPL conformance and the reliability levels at which the rule holds.
// A case that a provider cannot pass is skipped by name with a true reason; a
// name that no case has fails, so does a skipped case whose capability the
// provider claims in its limits.
//
// Each case gets a fabric of its own, drives every VI by one goroutine at a
// time, and afterwards destroys what it created: a NIC that then does not close
// fails the case. In all cases the kit checks, beside the case's own rule, that
// the descriptors of each queue complete in the order of their posts.
//
// The kit is modelled on the three levels of Intel's VI Architecture Conformance
// Suite, which is not available; passing it is not passing that suite.
package viatest
