package workload

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// node is a folder, a file or a symbolic link of the model. Several names may
// be of the same file.
type node struct {
	kind       fs.FileMode // of fs.ModeType
	mode       fs.FileMode // permissions
	children   map[string]*node
	data       []byte
	target     string
	attributes map[string]string
	links      int // names of a file
}

func newFolder() *node { return &node{kind: fs.ModeDir, mode: 0o755, children: make(map[string]*node)} }

// find returns what is at a path, nil if nothing is.
func (n *node) find(p string) *node {
	if p == "." {
		return n
	}
	for name := range strings.SplitSeq(p, "/") {
		if n = n.children[name]; n == nil {
			return nil
		}
	}
	return n
}

// walk calls do for each path below n and n itself, in order.
func (n *node) walk(p string, do func(p string, n *node)) {
	do(p, n)
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].walk(path.Join(p, name), do)
	}
}

// put puts a node at a path, in place of what is there.
func (n *node) put(p string, child *node) {
	n.remove(p)
	n.find(path.Dir(p)).children[path.Base(p)] = child
	child.links++
}

// remove removes a name.
func (n *node) remove(p string) {
	folder := n.find(path.Dir(p))
	if old := folder.children[path.Base(p)]; old != nil {
		old.links--
		delete(folder.children, path.Base(p))
	}
}

// apply does to the model what an operation does to the tree.
func (n *node) apply(o treeOp) {
	at := n.find(o.path)
	switch o.kind {
	case makeFolder:
		n.put(o.path, newFolder())
	case removeFolder, removeFile:
		n.remove(o.path)
	case makeFile:
		n.put(o.path, &node{mode: 0o644})
	case writeFile:
		m := model(at.data)
		m.apply(Op{Write, o.offset, int64(len(o.data))}, o.data)
		at.data = m
	case truncateFile:
		m := model(at.data)
		m.apply(Op{Kind: Truncate, Offset: o.offset}, nil)
		at.data = m
	case renameNode:
		if other := n.find(o.to); other == at {
			return // two names of a file: rename does nothing
		}
		n.put(o.to, at)
		n.remove(o.path)
	case exchangeNodes:
		other := n.find(o.to)
		n.find(path.Dir(o.path)).children[path.Base(o.path)] = other
		n.find(path.Dir(o.to)).children[path.Base(o.to)] = at
	case linkFile:
		n.put(o.to, at)
	case linkName:
		n.put(o.path, &node{kind: fs.ModeSymlink, target: o.to})
	case changeMode:
		at.mode = fs.FileMode(o.offset)
	case setAttribute:
		if at.attributes == nil {
			at.attributes = make(map[string]string)
		}
		at.attributes[o.to] = string(o.data)
	case removeAttribute:
		delete(at.attributes, o.to)
	}
}
