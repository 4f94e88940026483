package testbed

import (
	"os"
	"testing"
)

// OnDemand skips a test that measures, unless it is asked for.
func OnDemand(t testing.TB) {
	t.Helper()
	if os.Getenv("VIABLK_BENCH") != "1" {
		t.Skip("a benchmark: VIABLK_BENCH=1 runs it")
	}
}

// Setting returns a variable of the environment.
func Setting(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}
