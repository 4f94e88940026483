package vm

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(helperVariable); kind != "" {
		os.Exit(helpers[kind](os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// helperVariable makes the test binary do one thing in place of its tests.
const helperVariable = "VIABLK_VM_TEST_HELPER"

// helpers are these things; each returns an exit code.
var helpers = map[string]func(args []string) int{}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
