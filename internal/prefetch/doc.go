// Package prefetch asks the processor for cache lines ahead of their use.
package prefetch
