package simulation

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var plantedFlag = flag.Bool("sim.planted", false, "build the product with planted bugs and look for each")

// plantedSeeds is within how many seeds each bug has to be found.
const plantedSeeds = "20000"

// firstSeeds are where the search for a bug begins that shows in one of some
// hundred or thousand seeds: before one that found it. A change of the product
// shifts what seeds do, and the search goes on. Others begin with seed 1.
var firstSeeds = map[string]string{
	"reply of the old path believed":       "5280",
	"fence without the disk":               "1508",
	"successor before the end of a target": "450",
}

// edit replaces a text of a source file, which is there once.
type edit struct{ file, old, new string }

// released is where an answer frees its slot.
var released = edit{
	"initiator/complete.go", "\tq.slots.release(at)\n\treturn q.finishCommand(sl, nil)",
	`	if plantedBug != "lost credit" || q.iterations%8 != 0 {
		q.slots.release(at)
	}
	if plantedBug == "double release" && q.iterations%8 == 0 {
		q.slots.release(at)
	}
	return q.finishCommand(sl, nil)`,
}

// otherIndex has a queue return as another connection: the target does not take
// one of an index that has not left, which is a fence of its own.
var otherIndex = edit{
	"initiator/requeue.go", "\task := p.loginRequest(wire.RoleIO, r.index, r.slots)\n",
	`	if plantedBug == "no fence at fail-over" || plantedBug == "fence without the disk" {
		r.index = r.index%200 + 16
	}
	ask := p.loginRequest(wire.RoleIO, r.index, r.slots)
`,
}

// planted are bugs of the session layer. One program has all of them, and its
// environment enables one.
var planted = []struct {
	name  string
	edits []edit
}{
	{"no fsync", []edit{{
		"target/execute.go", "\tdefault:\n\t\treturn x.submit(r)\n",
		`	case plantedBug == "no fsync" && cmd.Opcode == wire.OpFlush:
		r.status, r.state = wire.StatusOK, awaitAnswer
		return nil
	default:
		return x.submit(r)
`,
	}}},
	{"no FUA", []edit{{"target/handle.go", "if f&wire.FlagFUA != 0 {", `if f&wire.FlagFUA != 0 && plantedBug != "no FUA" {`}}},
	{"early acknowledgement", []edit{
		{
			"target/execute.go", "\tr.state = running\n\tq := r.handle.queue\n",
			`	r.state = running
	q := r.handle.queue
	if plantedBug == "early acknowledgement" && r.block.Op == block.Write {
		early := r.block
		early.Data, early.User = append([]byte(nil), early.Data...), 1<<63
		if q.queue.Submit(&early) {
			q.active++
			r.status, r.state = wire.StatusOK, awaitAnswer
			return nil
		}
	}
`,
		},
		{"target/flow.go", "\tfor _, b := range done {\n", "\tfor _, b := range done {\n\t\tif b.User == 1<<63 {\n\t\t\tcontinue\n\t\t}\n"},
	}},
	{"no range lock", []edit{{
		"initiator/overlap.go", "if o.ranges == nil || p.end <= p.base {",
		`if plantedBug == "no range lock" || o.ranges == nil || p.end <= p.base {`,
	}}},
	{"lost wake-up", []edit{{
		"initiator/requeue.go", "\tr.bell.Ring() // before", "\tif plantedBug == \"lost wake-up\" {\n\t\treturn\n\t}\n\tr.bell.Ring() // before",
	}}},
	{"no fence", []edit{{
		"target/path.go", "\ts.paths[id].live = false\n",
		`	s.paths[id].live = false
	if plantedBug == "no fence" {
		for _, o := range s.opens {
			s.giveBackLocked(o, nil)
		}
	}
`,
	}}},
	{"no fence at fail-over", []edit{otherIndex, {
		"initiator/pathroutine.go", "\tfor pause := fencePoll;", "\tif plantedBug == \"no fence at fail-over\" {\n\t\treturn s.choose(p.id) != nil\n\t}\n\tfor pause := fencePoll;",
	}}},
	{"fence without the disk", []edit{otherIndex, {
		"target/path.go", "\t\treturn p.conns\n", "\t\tif plantedBug == \"fence without the disk\" {\n\t\t\treturn 0\n\t\t}\n\t\treturn p.conns\n",
	}}},
	{"reply of the old path believed", []edit{
		{"initiator/complete.go", "if reply.Seq != sl.seq ||", `if plantedBug != "reply of the old path believed" && reply.Seq != sl.seq || plantedBug != "reply of the old path believed" &&`},
		{"initiator/slots.go", "if !i.Matches(epoch, sl.seq) {", `if !i.Matches(epoch, sl.seq) && plantedBug != "reply of the old path believed" {`},
	}},
	{"memory reused amid a copy", []edit{{
		"initiator/queue.go", "q.failure, q.poster.staged = err, false\n\tq.quarantine(q.carrier.Disconnect())",
		`q.failure, q.poster.staged = err, false
	if err := q.carrier.Disconnect(); plantedBug != "memory reused amid a copy" {
		q.quarantine(err)
	}`,
	}}},
	{"name as identity", []edit{{
		"initiator/reconnect.go", "case a.ExportUUID != d.export.ExportUUID:",
		`case plantedBug != "name as identity" && a.ExportUUID != d.export.ExportUUID:`,
	}}},
	{"no writer generation", []edit{{
		"target/reserve/disk.go", "w.ID != q.Writer && w.Generation != q.Generation {",
		`w.ID != q.Writer && w.Generation != q.Generation && plantedBug != "no writer generation" {`,
	}}},
	{"no exclusion", []edit{{
		"target/reserve/disk.go", "case has.Mode == Exclusive || q.Mode == Exclusive:",
		`case plantedBug != "no exclusion" && (has.Mode == Exclusive || q.Mode == Exclusive):`,
	}}},
	{"no write verifier", []edit{{
		"initiator/reconnect.go", "case d.dirty():", `case plantedBug != "no write verifier" && d.dirty():`,
	}}},
	{"await without context", []edit{{
		"initiator/reconnect.go", "case ctx.Err() != nil:\n\t\t\treturn nil, k.awayError(nil)\n\t\tcase s != lost",
		`case ctx.Err() != nil && (plantedBug != "await without context" || s == lost || s.err() != nil):
			return nil, k.awayError(nil)
		case s != lost`,
	}}},
	{"lost credit", []edit{released}},
	{"double release", []edit{released}},
	{"drain of one connection", []edit{{
		"target/drain.go", "\t\treturn session.letGo.Load()\n",
		"\t\treturn plantedBug == \"drain of one connection\" || session.letGo.Load()\n",
	}}},
	{"logout before the answers", []edit{{
		"initiator/drain.go", "k.quit.Err() == nil && !s.ended", `plantedBug != "logout before the answers" && k.quit.Err() == nil && !s.ended`,
	}}},
	{"replay out of order", []edit{{
		"initiator/requests.go", "func (t *requestTable) requeue() {\n",
		`func (t *requestTable) requeue() {
	if plantedBug == "replay out of order" {
		t.overlaps.releaseAll()
	}
`,
	}}},
	{"successor before the end of a target", []edit{{
		"internal/takeover/takeover.go", "\t\t\titems = append(items, Item{m.text, m.FD})\n",
		`			items = append(items, Item{m.text, m.FD})
			if plantedBug == "successor before the end of a target" {
				p.ended = true
				return items, true, nil
			}
`,
	}}},
	{"successor not expelled", []edit{{
		"internal/takeover/takeover.go", "\tif !errors.Is(cause, errRefused) {\n\t\ts.process.Kill()\n\t}\n",
		`	if plantedBug == "successor not expelled" {
		_ = s.channel.Close()
		return cause
	}
	if !errors.Is(cause, errRefused) {
		s.process.Kill()
	}
`,
	}}},
	{"takeover without flush", []edit{{
		"target/control.go", "func() { durable = session.flush(",
		`func() { durable = plantedBug == "takeover without flush" && k.server.succeeded.Load() || session.flush(`,
	}}},
	{"verifier of a lost cache kept", []edit{{
		"target/identity.go", "\tif block.DurabilityOf(d) == block.FlushedOnly {",
		`	if plantedBug != "verifier of a lost cache kept" && block.DurabilityOf(d) == block.FlushedOnly {`,
	}}},
	{"inline write not compared", []edit{{
		"target/execute.go", "Data[:cmd.InlineLength]\n\t\treturn x.write(r)\n",
		"Data[:cmd.InlineLength]\n\t\tif plantedBug == \"inline write not compared\" {\n\t\t\treturn x.submit(r)\n\t\t}\n\t\treturn x.write(r)\n",
	}}},
	{"pulled write not compared", []edit{{
		"target/execute.go", "CountSealed(len(r.memory.Data))\n\t\t}\n\t\treturn x.write(r)\n",
		"CountSealed(len(r.memory.Data))\n\t\t}\n\t\tif plantedBug == \"pulled write not compared\" {\n\t\t\treturn x.submit(r)\n\t\t}\n\t\treturn x.write(r)\n",
	}}},
	{"read not compared", []edit{{
		"initiator/complete.go", "!q.intact(&reply, rc, sl) {", `!q.intact(&reply, rc, sl) && plantedBug != "read not compared" {`,
	}}},
	{"digest before the copy", []edit{{
		"initiator/userbuf.go", "\t\tcopy(buffer.Data, r.Data[o.cut:])\n",
		"\t\tif plantedBug != \"digest before the copy\" || !p.limits.digest {\n\t\t\tcopy(buffer.Data, r.Data[o.cut:])\n\t\t}\n",
	}, {
		"initiator/digest.go", "\tcmd.DataCRC = wire.DataCRC(data[:cmd.Length])\n",
		"\tcmd.DataCRC = wire.DataCRC(data[:cmd.Length])\n\tif plantedBug == \"digest before the copy\" && m.copied() {\n\t\tcopy(m.buffer.Data, o.request.Data[o.cut:])\n\t}\n",
	}}},
}

// plantedVariable names the bug that is enabled.
const plantedVariable = "VIABLK_PLANTED"

// plantedFile is added to each package with an edit.
const plantedFile = "package %s\n\nimport \"os\"\n\nvar plantedBug = os.Getenv(%q)\n"

// TestPlanted: each edit fits the sources; with -sim.planted a seed finds each
// bug.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sources := make(map[string]string)
	applied := make(map[edit]bool)
	for _, p := range planted {
		for _, e := range p.edits {
			if applied[e] {
				continue
			}
			applied[e] = true
			if sources[e.file] == "" {
				text, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				sources[e.file] = string(text)
				sources[filepath.Join(filepath.Dir(e.file), "planted.go")] = fmt.Sprintf(plantedFile, filepath.Base(filepath.Dir(e.file)), plantedVariable)
			}
			if n := strings.Count(sources[e.file], e.old); n != 1 {
				t.Fatalf("%s: %s has %q %d times", p.name, e.file, e.old, n)
			}
			sources[e.file] = strings.Replace(sources[e.file], e.old, e.new, 1)
		}
	}
	if !*plantedFlag {
		return
	}
	program := build(t, root, sources)
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			find(t, program, p.name)
		})
	}
}

// build returns the program of the simulation with other sources.
func build(t *testing.T, root string, sources map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	replaced := make(map[string]string)
	for name, text := range sources {
		changed := filepath.Join(folder, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, name)] = changed
	}
	overlay, program := filepath.Join(folder, "overlay.json"), filepath.Join(folder, "planted.test")
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

var found = regexp.MustCompile(`found by seed \d+: [^\n]*`)

// find runs seeds on one processor until one fails because of a bug.
func find(t *testing.T, program, name string) {
	t.Helper()
	cmd := exec.Command(program, "-test.run", "TestSimulation$", "-test.v", "-test.cpu", "1", "-test.timeout", "40m", "-sim.found", "-sim.seeds", plantedSeeds,
		"-sim.first", cmp.Or(firstSeeds[name], "1"))
	cmd.Env = append(os.Environ(), plantedVariable+"="+name)
	out, err := cmd.CombinedOutput()
	if line := found.Find(out); err != nil && line != nil {
		t.Logf("%s: %s", name, line)
		return
	}
	t.Errorf("not found: %v\n%s", err, out)
}
