// Package suites runs the test suites of other NBD projects against viablk: the
// tests of nbd, by its client nbd-tester-client, of libnbd, and those of QEMU
// that speak raw NBD. Their authors did not know of viablk.
//
// Their sources are Debian's source packages. apt fetches them, and checks
// them, when the tests run, into a folder outside of the repository that is
// gone afterwards. Where a suite starts servers itself, package shim answers to
// their names. Servers that are not viablk take no part: a case counts only if
// viablk started in it and nothing else did.
//
// Each case of a suite runs, or does not apply and says why. A suite that
// cannot be fetched or built is a failure. The tests have the build tag suites;
// make test-suites runs them and prints how many cases there are of which kind.
package suites
