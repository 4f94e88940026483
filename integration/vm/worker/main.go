// Command worker loads a disk or a file system in a virtual machine and says
// whether it did what it should: packages workload and crashcheck as a program.
// It exits with 0 if all was well, with 1 if not, and says what was wrong.
package main

import (
	"flag"
	"fmt"
	"os"
)

// roles are what the program does, by its first argument.
var roles = map[string]func(*flag.FlagSet) func() error{
	"file":        exerciseFile,
	"disk":        exerciseDisk,
	"trees":       exerciseTrees,
	"trees-check": checkTrees,
	"log-write":   logWrite,
	"log-check":   logCheck,
	"client":      plainClientFlags,
	"latency":     latencyFlags,
	"zeroes":      zeroesFlags,
	"disconnect":  disconnectFlags,
}

func main() {
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "worker: name what is to be done first")
		os.Exit(2)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	run := roles[os.Args[1]](flags)
	_ = flags.Parse(os.Args[2:]) // exits
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
