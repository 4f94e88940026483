package workload

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
)

// The limits of the tree of one worker.
const (
	treeNodes  = 120
	treeFile   = 96 << 10 // bytes of a file
	treeDepth  = 5
	valueLimit = 100 // bytes of an attribute; ext4 has room for a block of all of them
)

// plan chooses the operations on a tree, by a seed and by what the model has.
type plan struct {
	random *rand.Rand
	seed   uint64
	names  int // that were given
	tree   *node
	known  []entry // of the tree, in order; nil when names have changed
}

// entry is a path of a tree with what is there.
type entry struct {
	path string
	kind fs.FileMode
}

// renames are the operations that change names.
var renames = []treeKind{
	makeFolder, removeFolder, makeFile, removeFile, renameNode, exchangeNodes, linkFile, linkName,
}

// paths returns the paths below the root of what is of a kind, in order.
func (p *plan) paths(kinds ...fs.FileMode) (list []string) {
	if p.known == nil {
		p.tree.walk(".", func(path string, n *node) { p.known = append(p.known, entry{path, n.kind}) })
	}
	for _, e := range p.known[1:] {
		if slices.Contains(kinds, e.kind) {
			list = append(list, e.path)
		}
	}
	return list
}

func newPlan(seed uint64) *plan {
	return &plan{random: rand.New(rand.NewPCG(seed, 1)), seed: seed, tree: newFolder()}
}

// next returns an operation that succeeds, and has done it to the model.
func (p *plan) next() treeOp {
	weight := 0
	for _, w := range treeWeights {
		weight += w
	}
	for {
		n, kind := p.random.IntN(weight), treeKind(0)
		for n >= treeWeights[kind] {
			n -= treeWeights[kind]
			kind++
		}
		if o, ok := p.fill(kind); ok {
			p.tree.apply(o)
			if slices.Contains(renames, kind) {
				p.known = nil
			}
			return o
		}
	}
}

// one returns one of a list, and "" of an empty one.
func (p *plan) one(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[p.random.IntN(len(list))]
}

// fresh returns a path at which nothing is.
func (p *plan) fresh() string {
	folder := "."
	if p.random.IntN(4) > 0 {
		if chosen := p.one(p.paths(fs.ModeDir)); chosen != "" {
			folder = chosen
		}
	}
	p.names++
	name := fmt.Sprintf("n%d", p.names)
	if p.random.IntN(10) == 0 {
		name += strings.Repeat("-", p.random.IntN(200))
	}
	return path.Join(folder, name)
}

// fill chooses what an operation of a kind is done to, and reports whether
// there is something.
func (p *plan) fill(kind treeKind) (o treeOp, ok bool) {
	o.kind = kind
	switch kind {
	case makeFolder, makeFile, linkName, linkFile:
		o.path = p.fresh()
		if len(p.paths(0, fs.ModeDir, fs.ModeSymlink)) >= treeNodes || strings.Count(o.path, "/") >= treeDepth {
			return o, false
		}
		return o, p.fillNew(&o)
	case removeFolder:
		o.path = p.one(p.paths(fs.ModeDir))
		return o, o.path != "" && len(p.tree.find(o.path).children) == 0
	case syncFolder, listFolder:
		o.path = p.one(append(p.paths(fs.ModeDir), "."))
		return o, true
	case renameNode, exchangeNodes:
		return o, p.fillMove(&o)
	case removeFile:
		o.path = p.one(p.paths(0, fs.ModeSymlink))
		return o, o.path != ""
	case setAttribute, removeAttribute, changeMode:
		o.path = p.one(p.paths(0, fs.ModeDir))
		return o, o.path != "" && p.fillAttribute(&o)
	}
	if o.path = p.one(p.paths(0)); o.path == "" {
		return o, false
	}
	switch kind {
	case truncateFile:
		o.offset = p.random.Int64N(treeFile)
	case writeFile:
		o.offset = p.random.Int64N(int64(len(p.tree.find(o.path).data)) + 1)
		o.data = make([]byte, 1+p.random.Int64N(treeFile-o.offset)>>p.random.IntN(6))
		p.names++
		_, _ = newNoise(p.seed, uint64(p.names)).Read(o.data) // never fails
	}
	return o, true
}

// fillNew is fill of what is made.
func (p *plan) fillNew(o *treeOp) bool {
	switch o.kind {
	case linkFile:
		o.path, o.to = p.one(p.paths(0)), o.path
		return o.path != ""
	case linkName:
		p.names++
		o.to = fmt.Sprintf("to/%d%s", p.names, strings.Repeat("x", p.random.IntN(100)))
	}
	return true
}

// fillMove is fill of what is moved.
func (p *plan) fillMove(o *treeOp) bool {
	all := p.paths(0, fs.ModeDir, fs.ModeSymlink)
	o.path, o.to = p.one(all), p.one(all)
	if o.kind == renameNode && p.random.IntN(2) == 0 {
		o.to = p.fresh()
	}
	if o.path == "" || o.to == "" || o.path == o.to ||
		strings.HasPrefix(o.to, o.path+"/") || strings.HasPrefix(o.path, o.to+"/") {
		return false
	}
	from, to := p.tree.find(o.path), p.tree.find(o.to)
	if o.kind == exchangeNodes || to == nil {
		return true
	}
	return from.kind.IsDir() == to.kind.IsDir() && len(to.children) == 0
}

// fillAttribute is fill of permissions and attributes.
func (p *plan) fillAttribute(o *treeOp) bool {
	switch o.kind {
	case changeMode:
		o.offset = 0o700 + p.random.Int64N(0o100)
	case setAttribute:
		o.to = fmt.Sprintf("user.%d", p.random.IntN(4))
		p.names++
		o.data = make([]byte, 1+p.random.IntN(valueLimit))
		_, _ = newNoise(p.seed, uint64(p.names)).Read(o.data) // never fails
	case removeAttribute:
		o.to = p.one(slices.Sorted(maps.Keys(p.tree.find(o.path).attributes)))
		return o.to != ""
	}
	return true
}
