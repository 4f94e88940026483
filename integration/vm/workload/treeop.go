package workload

import (
	"fmt"
	"strings"
)

// treeKind is what an operation on a tree of files does.
type treeKind uint8

const (
	makeFolder treeKind = iota
	removeFolder
	makeFile
	writeFile
	truncateFile
	syncFile
	readFile
	removeFile // or a link
	renameNode // over what is there
	exchangeNodes
	linkFile
	linkName // symbolically
	syncFolder
	listFolder
	changeMode
	setAttribute
	removeAttribute
	treeKinds
)

var treeNames = [treeKinds]string{
	"mkdir", "rmdir", "create", "write", "truncate", "fsync", "read", "unlink", "rename", "exchange", "link", "symlink",
	"fsync folder", "list", "chmod", "setxattr", "removexattr",
}

func (k treeKind) String() string { return treeNames[k] }

// treeWeights are how often kinds are chosen, in relation to each other.
var treeWeights = [treeKinds]int{
	makeFolder: 4, removeFolder: 3, makeFile: 10, writeFile: 20, truncateFile: 6, syncFile: 4, readFile: 8, removeFile: 6,
	renameNode: 8, exchangeNodes: 2, linkFile: 4, linkName: 3, syncFolder: 2, listFolder: 4, changeMode: 3,
	setAttribute: 5, removeAttribute: 2,
}

// treeOp is an operation on a tree. Paths are relative to it.
type treeOp struct {
	kind treeKind
	path string
	to   string // the second path, what a symbolic link says, the name of an attribute
	data []byte // what is written, or the value of an attribute

	offset int64 // bytes; of truncateFile the size, of changeMode the mode
}

func (o treeOp) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", o.kind, o.path)
	if o.to != "" {
		fmt.Fprintf(&b, " %s", o.to)
	}
	if o.offset != 0 || o.kind == truncateFile {
		fmt.Fprintf(&b, " at %#x", o.offset)
	}
	if o.data != nil {
		fmt.Fprintf(&b, " %#x bytes", len(o.data))
	}
	return b.String()
}

// treeHistoryLimit is how much of the end of a history is told.
const treeHistoryLimit = 100

// tellTree returns the end of a history.
func tellTree(history []treeOp) string {
	var b strings.Builder
	for i := max(0, len(history)-treeHistoryLimit); i < len(history); i++ {
		fmt.Fprintf(&b, "%5d %v\n", i, history[i])
	}
	return b.String()
}
