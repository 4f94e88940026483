// Package prefetch asks the processor for cache lines ahead of their use. The
// queues of via and the rings of via/shm call it for entries that they
// are about to use.
package prefetch
