// Command checklocks checks the lock annotations of viablk: +checklocks:mu on
// a field or a function says which mutex guards it.
//
// It is a module of its own so that viablk does not depend on the analyzer.
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"
	"gvisor.dev/gvisor/tools/checklocks"
)

func main() { singlechecker.Main(checklocks.Analyzer) }
