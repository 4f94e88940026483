// Package regbench measures what memory that is registered is worth: a
// machine's own Table 1 ([Table]), what policies of a registration cache keep
// and where a cache does not pay ([Policies]), the decision between copy and
// registration against the fixed answers ([Decide]), and what it gains that a
// copy overlaps with its transfer ([Pipeline]).
//
// Whole operations are measured through initiator and target, both in this
// process, the target's worker on a thread of its own. The modes compared take
// rounds within the same run, a millisecond or a few each.
package regbench
