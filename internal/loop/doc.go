// Package loop drives many connections by few threads. A [Task] is a connection
// that can be visited: it does a share of what there is to do, and says what it
// waits for. A loop is a thread that sleeps in one system call for all of its
// tasks and visits those that have something to do. A process has a loop for
// each processor; tasks are placed where the fewest are, and move when loops
// are unequal.
//
// A connection with a thread of its own pays for a sleep and a wake-up with
// each request, and threads of several connections take the processors from
// each other; see docs/decisions/0028-loops.md.
//
// The package also keeps a thread that sleeps in system calls from costing more
// than these: timeslice.go.
package loop
