package viablk_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A term is a word or phrase with what to write instead. Forms are separated by
// bars; "…" stands for one to four words of the same sentence. Homes are the
// folders where the word is the field's own; each home uses it.
type term struct {
	forms, use string
	homes      []string
}

// phrases say nothing to an engineer of the field. They are refused in
// comments, string literals, documentation, scripts and unit files.
var phrases = []term{
	{"under way|underway", "in flight", nil},
	{"send again|sends again|sent again|sending again|send … again|sends … again", "retransmit, resend", nil},
	{"nobody|no one|noone", "the passive, or the role with no", nil},
	{"somebody|someone|anybody|anyone|everybody|everyone", "the role: caller, peer, client, user", nil},
	{"whoever|whosoever|whomever", "the role: caller, peer, client, user", nil},
	{"he|him|his|himself|she|her|herself", "the role, or it", nil},
	{"as often as it likes|as often as they like|as often as one likes|as long as it likes", "at any rate, without a limit", nil},
	{"look for work|looks for work|looked for work|looking for work", "busy-poll", nil},
	{"a look|one look|looks into", "a poll, a lookup", nil},
	{"dear|dearer|dearest", "expensive", nil},
	{"patience|patient|patiently|impatient", "timeout", nil},
	{"stranger|strangers", "unauthenticated peer, unknown client", nil},
	{"that is none|which is none|is none of", "what it is instead", nil},
	{"heartbeat|heartbeats|missed beats", "keepalive", nil},
	{"a sign of life|signs of life|sign of life", "keepalive", nil},
	{"without a word|a last word|its last word|last words|first words", "what is sent: keepalive, final ACK, handshake", nil},
	{"in vain", "without effect, or the error", nil},
	{"vouch|vouches|vouched", "prove, guarantee", nil},
	{"the turn|a turn|its turn|whose turn|their turn|his turns|its turns|takes turns|turns with", "iteration, quantum, round, or the owner", nil},
	{"lane|lanes", "shard, queue, VI, circuit", nil},
	{"ghost|ghosts", "lingering link", nil},
	{"farewell|farewells", "disconnect, final ACK", nil},
	{"seat|seats|berth|berths", "entry, binding", nil},
	{"tally|tallies|tallied", "count", nil},
	{"settle|settles|settled", "complete, finish", nil},
	{"hungry|mute|muted", "blocked, silent, suppressed", nil},
	{"detour|detours", "offload", nil},
	{"leave a note|leaves a note|left a note|leaves it a note", "set the pending flag", nil},
}

// parts are words that no name of ours has among its parts: of a declaration,
// a test, a file, a package, a key of JSON or of the configuration.
var parts = []term{
	{"lane|lanes", "shard, queue, circuit", nil},
	{"turn|turns", "iteration, quantum, round, driver", nil},
	{"settle|settles|settled|settling", "complete, finish", nil},
	{"tally|tallies", "counts", nil},
	{"berth|berths", "binding", nil},
	{"seat|seats", "entry, binding", nil},
	{"stranger|strangers", "unauthenticated, unknown", nil},
	{"patience|patient|impatient", "timeout", nil},
	{"beat|beats|heartbeat|heartbeats", "keepalive", nil},
	{"ghost|ghosts", "lingering", nil},
	{"neighbours", "discovery", nil},
	{"stray|strays", "misrouted", nil},
	{"letter|letters", "packetCopy, message", []string{"integration/suites/shim", "internal/bytesize"}},
	{"conversation|conversations|converse", "connection, exchange", nil},
	{"consult", "withManager", nil},
	{"say", "send, reply", nil},
	{"hear", "receive, deliver", nil},
	{"farewell", "finalAck", nil},
	{"attention|care|glance", "progressState, poll", nil},
	{"attend|attends", "serve, handle", nil},
	{"stir", "cancelWakeup", nil},
	{"rouse", "wake", nil},
	{"hush", "drain", nil},
	{"heed", "handle", nil},
	{"mention|mentions", "log, record", nil},
	{"forsake", "drop, release", nil},
	{"purse", "budget", nil},
	{"hope", "prior", nil},
	{"belief|believe|believed", "estimate, validated", nil},
	{"took", "cost", nil},
	{"trial|trials", "probation, attempt", nil},
	{"codeless|coded", "defaultCode", nil},
	{"entrance|entrances", "listener", nil},
	{"judge|judges|judged", "validate", nil},
	{"welcome", "admit", nil},
	{"spare", "reserved", nil},
	{"relieve", "shed", nil},
	{"dry", "wouldBlock", nil},
	{"hungry", "needsInput", nil},
	{"mute|mutes|muted", "silent, suppressed", nil},
	{"shedder", "trimmer", nil},
	{"detour|detours", "offload", nil},
	{"prompt|prompts|prompted", "inline", nil},
	{"survival", "durability", nil},
	{"keeper|keepers", "reconnector", nil},
	{"absence", "reconnect", nil},
	{"depart|departs|departed", "disconnect", nil},
	{"stay", "cancelReconnect, keep", nil},
	{"looks|looked", "poll, lookup", nil},
	{"own", "private, mapped, local", nil},
	{"crowded", "queueFull", nil},
	{"forged", "badSource", []string{"initiator", "internal/carrier", "internal/seal"}}, // refused by a seal
	{"journal", "readyLog", nil},
	{"exerciser|ledger|journalist", "workload, writeLog, books", nil},
	{"dialect|dialects", "replyMode", nil},
	{"vain", "refused, failed", nil},
	{"underway", "inFlight", nil},
	{"nobody|somebody|anybody|whoever", "the role", nil},
	{"dear|dearer|dearest", "expensive", nil},
	{"vouch", "verify", nil},
	{"wish|wishes", "requested", nil},
	{"keen|hasty|stubborn", "what it does", nil},
	{"guestbook", "log, recorder", nil},
	{"teller|fortune", "what it does", nil},
	{"besiege|besieged", "attack, flood", nil},
	{"befall|befalls", "inject", nil},
	{"doze|slumber", "sleep, block", nil},
	{"raid|raided", "what it does", nil},
}

// keys are whole keys of JSON that say something only to who wrote them.
var keys = []term{
	{"calls", "syscalls", nil},
	{"spins|spins_paid", "busy_polls, poll_hits", nil},
	{"returns", "reconnects", nil},
	{"losses", "session_losses", nil},
	{"away_seconds", "disconnected_seconds", nil},
	{"foreign|absent|spanning|once", "what is counted", nil},
}

// meanings are words with their meaning and the folders that may use them in
// names. Outside of its homes a word would have a second meaning.
var meanings = []term{
	{"window|windows", "messages or packets in flight at most", []string{"via/roce/rc", "cmd/viablk", "cmd/viablk/internal/bench"}},
	{"slot|slots", "the place of a command in its connection", []string{"internal/wire", "internal/nbdclient", "target", "target/backend/rbd", "initiator"}},
	{"driver|drivers", "the right to make progress on completion queues; of the kernel's nbd", []string{"via", "via/viatest", "internal/nbdkernel", "cmd/viablk"}},
	{"hazard|hazards", "a registration that a peer may still use", []string{"via/shm"}},
	{"lingering|linger", "a closed link whose peer may still be inside a copy", []string{"via/shm"}},
	{"quantum", "what a link moves before the next link", []string{"via/shm", "via/roce"}},
	{"capsule|capsules", "a message of the block protocol", []string{"internal/wire", "internal/seal"}},
	{"carrier|carriers", "one VI with its posted receives and sends", []string{"internal/carrier", "target", "initiator"}},
	{"reconnector", "the goroutine that re-establishes a session", []string{"initiator"}},
	{"reaper", "the goroutine that deregisters", []string{"regcache"}},
	{"probation", "the segment of registrations that were used once", []string{"regcache"}},
	{"lease|leases|leased", "a reference that keeps a registration", []string{"regcache", "initiator", "target", "cmd/viablk/internal/regbench"}},
	{"haggle|haggler|haggling", "NBD's negotiation of options", []string{"internal/nbd", "internal/nbd/nbdtest", "integration/history"}},
	{"latch|latched", "every flush fails after one failed", []string{"internal/block", "target/backend", "target/backend/rbd", "integration/simulation"}},
	{"park|parked", "idle, without buffers and thread", []string{"internal/nbd", "internal/block"}},
	{"shard|shards", "one UDP socket of an endpoint and its links", []string{"via/roce", "via/roce/port", "via/roce/port/porttest", "via/roce/ethernet"}},
	{"granule|granules", "the unit of registration, or of a table of ranges", []string{"regcache", "internal/block", "target", "cmd/viablk/internal/regbench"}},
	{"credit|credits", "a posted receive; the right to send one message", []string{"via/roce/rc", "via/roce/wire", "internal/wire", "target", "initiator", "via/viatest", "cmd/viablk/internal/bench"}},
	{"kick|kicked", "start submitted requests", []string{"internal/block", "internal/nbd", "internal/nbdclient", "initiator", "target", "target/backend", "target/backend/rbd", "target/limit", "integration/simulation"}},
	{"verifier", "a number that changes when unflushed writes may be lost", []string{"internal/wire", "internal/block", "target", "target/backend", "target/identity", "initiator", "cmd/viablk", "integration/simulation"}},
	{"fence|fences|fenced", "no request of an old path executes any more", []string{"internal/wire", "target", "initiator", "via/roce/rc", "via", "via/viatest"}},
	{"bounce", "copied through registered memory", []string{"regcache", "cmd/viablk/internal/regbench", "target/backend", "via/verbs"}},
	{"durability", "which writes survive which failure", []string{"internal/block", "target/backend", "target/backend/rbd", "target/limit", "integration/simulation"}},
}

// verbs begin no name of a function: they say neither what is moved nor where.
var verbs = []term{
	{"take", "acquire, allocate, receive, reap", nil},
	{"leave", "release, disconnect, detach", nil},
	{"enter", "begin, add, insert", nil},
	{"drop", "release, remove, discard", nil},
}

// standardVerbs are functions whose name is a term of a specification.
var standardVerbs = map[string]string{
	"via/roce/cm.enterTimeWait": "the state TimeWait of the InfiniBand specification is entered",
	"via/shm.dropMessage":       "unreliable delivery drops messages",
}

// openings begin no sentence, for what follows them is a relative clause as the
// subject, or no actor. Questions may begin so, and "How" a heading.
var openings = []term{
	{"What", "the actor: a type, a function, a peer", nil},
	{"Who|Whoever|Whose|Whom", "the actor: a type, a function, a peer", nil},
	{"Which|Whichever|Whatever", "the actor: a type, a function, a peer", nil},
	{"That a|That an|That the|That no|That it|That they|That there", "the actor: a type, a function, a peer", nil},
	{"Nobody|No one|Somebody|Someone|Everybody", "the passive, or the role", nil},
	{"He|She", "the role", nil},
	{"How|Why", "the actor, unless it is the first sentence", nil},
}

// Widths of comments in characters: of the line, a tab counting one, and of the
// text of a comment behind code. A line with a URL may be longer.
const (
	maximumWidth    = 80
	maximumTrailing = 72
)

// debris are names of files that tools leave behind.
var debris = regexp.MustCompile(`\.(orig|rej|state|swp|swo|bak|old|tmp|prof|test|out|pcap\.tmp|log|core)$|~$|^core(\.\d+)?$|^\.#|^#.*#$|^\.DS_Store$|^nohup|^__debug_bin`)

// maximumBinary bounds a tracked file that is not text, in bytes; of text
// maximumLines and the readers' time are the bounds.
const maximumBinary = 64 << 10

// listFiles returns the names of the files that git tracks or would. Sources
// without a repository, as those of a release, are all files but what builds
// make.
func listFiles(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(".git"); os.IsNotExist(err) {
		var names []string
		err := fs.WalkDir(os.DirFS("."), ".", func(name string, e fs.DirEntry, err error) error {
			switch {
			case err == nil && e.IsDir() && (name == "bin" || name == "dist"):
				return fs.SkipDir
			case err == nil && e.Type().IsRegular():
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	var complaint strings.Builder
	// Another user may own the tree: root, who runs the tests, reads it alone.
	list := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard")
	list.Stderr = &complaint
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v: %s", err, complaint.String())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// trackedFiles returns the files of the tree by name.
func trackedFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, name := range listFiles(t) {
		content, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not yet in a commit
		}
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(content)
	}
	return files
}

// The tree keeps the rules.
func TestTidy(t *testing.T) {
	files := trackedFiles(t)
	if len(files) < 500 {
		t.Fatalf("only %d files were found", len(files))
	}
	bad, used := checkWords(files)
	for _, complaint := range bad {
		t.Error(complaint)
	}
	for _, stale := range used.stale() {
		t.Error(stale)
	}
}

// stale returns the homes and standard verbs that nothing uses any more.
func (u usage) stale() []string {
	var bad []string
	for _, t := range slices.Concat(parts, meanings) {
		for _, home := range t.homes {
			if !u[t.forms+" "+home] {
				bad = append(bad, fmt.Sprintf("%s is no home of %q any more", home, t.forms))
			}
		}
	}
	for name := range standardVerbs {
		if !u[name] {
			bad = append(bad, fmt.Sprintf("there is no %s any more", name))
		}
	}
	slices.Sort(bad)
	return bad
}

// goodFiles keep every rule.
var goodFiles = map[string]string{
	"via/good.go": "// Package via is planted. A shard owns one socket.\npackage via\n\n// Poll reaps completions.\nfunc Poll() {} // it polls\n",
	"docs/good.md": "# What it does\n\nA worker serves one connection: what it moves is bounced. Why?\n\n" +
		"| What | is |\n|---|---|\n| Who | the peer |\n",
	"via/roce/cm/good.go": "package cm\n\n// How a connection ends.\n\nfunc enterTimeWait() {}\n",
	"Makefile":            "all: # resend what is lost\n",
}

// A word that cannot be found is not banned: each form of each term is planted.
func TestBannedWordsAreFound(t *testing.T) {
	if bad, _ := checkWords(goodFiles); len(bad) != 0 {
		t.Fatalf("the good files are refused: %q", bad)
	}
	for _, c := range []struct {
		terms []term
		plant func(form string) (name, content string)
		want  string
	}{
		{phrases, func(form string) (string, string) {
			return "via/bad.go", "package via\n\n// It is planted: " + planted(form) + " as it were.\n"
		}, "via/bad.go:3: the phrase "},
		{phrases, func(form string) (string, string) {
			return "via/bad.go", "package via\n\nvar log = \"it " + planted(form) + ": %v\"\n"
		}, "via/bad.go:3: the phrase "},
		{phrases, func(form string) (string, string) {
			return "docs/bad.md", "A text\nhas " + planted(form) + " in it.\n"
		}, "docs/bad.md:1: the phrase "},
		{phrases, func(form string) (string, string) {
			return "contrib/bad.service", "[Unit]\nDescription=a disk " + planted(form) + "\n"
		}, "contrib/bad.service:2: the phrase "},
		{parts, func(form string) (string, string) {
			return "via/bad.go", "package via\n\nfunc (x y) get" + upper(form) + "Of() {}\n"
		}, "via/bad.go:3: get"},
		{parts, func(form string) (string, string) {
			return "via/bad_test.go", "package via\n\nfunc Test" + upper(form) + "(t *testing.T) {}\n"
		}, "via/bad_test.go:3: Test"},
		{parts, func(form string) (string, string) {
			return "via/bad.go", "package via\n\ntype x struct {\n\ty int `json:\"a_" + form + "\"`\n}\n"
		}, "via/bad.go:4: a_"},
		{parts, func(form string) (string, string) { return "via/" + form + "_test.go", "package via\n" }, "via/"},
		{meanings, func(form string) (string, string) {
			return "config/bad.go", "package config\n\nfunc f(my" + upper(form) + " int) {}\n"
		}, "config/bad.go:3: my"},
		{keys, func(form string) (string, string) {
			return "via/bad.go", "package via\n\ntype x struct {\n\ty int `json:\"" + form + ",omitempty\"`\n}\n"
		}, "via/bad.go:4: "},
		{verbs, func(form string) (string, string) {
			return "via/bad.go", "package via\n\ntype x interface { " + form + "Item() }\n"
		}, "via/bad.go:3: the function "},
		{verbs, func(form string) (string, string) {
			return "via/bad.go", "package via\n\nfunc (x y) " + upper(form) + "() {}\n"
		}, "via/bad.go:3: the function "},
		{openings, func(form string) (string, string) {
			return "via/bad.go", "package via\n\n// A link moves bytes. " + form + " peer sends is copied.\n"
		}, "via/bad.go:3: "},
		{openings, func(form string) (string, string) {
			return "docs/bad.md", "A link moves bytes.\n" + form + " peer sends is copied.\n"
		}, "docs/bad.md:1: "},
	} {
		for form := range formsOf(c.terms) {
			name, content := c.plant(form)
			files := maps.Clone(goodFiles)
			files[name] = content
			if bad, _ := checkWords(files); len(bad) == 0 || !strings.HasPrefix(bad[0], c.want) {
				t.Errorf("%q is not found: %q, want %q", form, bad, c.want)
			}
		}
	}
}

// planted returns a phrase with words for those left open.
func planted(form string) string { return strings.ReplaceAll(form, "…", "the lost request") }

// upper returns a word with a capital.
func upper(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// The other rules find what is planted, too.
func TestTidyRulesCanFail(t *testing.T) {
	for _, c := range []struct{ name, file, content, want string }{
		{
			"wide comment", "via/bad.go", "package via\n\n// " + strings.Repeat("x", 78) + "\n",
			"via/bad.go:3: the comment is 81 columns wide, at most 80 are allowed",
		},
		{
			"wide line of a long comment", "via/bad.go", "package via\n\n/*\n" + strings.Repeat("é", 81) + "\n*/\n",
			"via/bad.go:4: the comment is 81 columns wide, at most 80 are allowed",
		},
		{
			"comment behind code", "via/bad.go", "package via\n\nvar x int // " + strings.Repeat("x", 70) + "\n",
			"via/bad.go:3: the comment behind code has 73 characters, at most 72 are allowed",
		},
		{"rejected patch", "via/link.go.rej", "", "via/link.go.rej: a tool left this file behind"},
		{"original", "docs/nbd.md.orig", "", "docs/nbd.md.orig: a tool left this file behind"},
		{"fio's state", "local-verify.state", "", "local-verify.state: a tool left this file behind"},
		{"editor's copy", "via/.link.go.swp", "", "via/.link.go.swp: a tool left this file behind"},
		{"backup", "via/link.go~", "", "via/link.go~: a tool left this file behind"},
		{"core", "via/core.123", "", "via/core.123: a tool left this file behind"},
		{"test binary", "via/via.test", "", "via/via.test: a tool left this file behind"},
		{
			"binary", "docs/picture.png", strings.Repeat("\x00", maximumBinary+1),
			"docs/picture.png: is binary and has 65537 bytes, at most 65536 are allowed",
		},
		{"phrase in a name", "via/bad.go", "package via\n\nvar isUnderWay bool\n", `via/bad.go:3: isUnderWay: the phrase "under way": write in flight`},
		{
			"key of the configuration", "via/bad.go", "package via\n\ntype x struct {\n\tY int `mapstructure:\"io_patience\"`\n}\n",
			`via/bad.go:4: io_patience has the part "patience": write timeout`,
		},
		{"name of a folder", "via/ghost/good.go", "package via\n", `via/ghost/good.go: via_ghost has the part "ghost": write lingering`},
		{
			"help text", "via/bad.go", "package via\n\nconst help = `Bench it.\n\nIt copies. What it copies is bytes.`\n",
			`via/bad.go:3: a sentence begins with "What": begin with the actor`,
		},
		{
			"heading that is no first sentence", "via/bad.go", "package via\n\n// A link ends. How it ends depends.\n",
			`via/bad.go:3: a sentence begins with "How": begin with the actor`,
		},
		{
			"list", "docs/bad.md", "Rules:\n\n- A peer sends.\n- Whoever sends waits.\n",
			`docs/bad.md:3: a sentence begins with "Whoever": begin with the actor`,
		},
		{"syntax", "via/bad.go", "package\n", "via/bad.go: does not parse: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := maps.Clone(goodFiles)
			files[c.file] = c.content
			bad, _ := checkWords(files)
			if len(bad) == 0 || !strings.HasPrefix(bad[0], c.want) {
				t.Errorf("got %q, want %q", bad, c.want)
			}
		})
	}
	if stale := make(usage).stale(); len(stale) < len(standardVerbs) {
		t.Errorf("only %d stale homes are found", len(stale))
	}
}
