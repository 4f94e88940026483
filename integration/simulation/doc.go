// Package simulation runs the whole session layer in one process and in virtual
// time: initiators, targets, a fabric between them and disks below.
//
//	clients ─▶ initiator ─▶ via ─▶ adapter, link ─▶ via ─▶ target ─▶ disk
//	   └─▶ referee              network                              └─▶ medium
//
// A seed determines a run: a [Scheduler] runs one task at a time, and faults
// happen at virtual times that the seed has chosen before. The code under test
// is that of the product.
//
// Tests alone use the package.
package simulation
