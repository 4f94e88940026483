package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
)

// writeManual writes the manual as the command does, and returns its pages.
func writeManual(t *testing.T) map[string]string {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	folder := t.TempDir()
	var stderr bytes.Buffer
	if code := run([]string{"manual", folder}, nil, &stderr, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	pages := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(folder, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		pages[file.Name()] = string(text)
	}
	return pages
}

// The page and the schema of the configuration speak of lists, and not of flags
// that are given again.
func TestConfigurationHasLists(t *testing.T) {
	page := writeManual(t)["viablk.yaml.5"]
	var schema, stderr bytes.Buffer
	if code := run([]string{"config", "schema"}, nil, &schema, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	for name, text := range map[string]string{"page": page, "schema": schema.String()} {
		if strings.Contains(text, "repeated") {
			t.Errorf("the %s says that a key may be repeated", name)
		}
		if n := strings.Count(strings.ToLower(text), "a list of"); n < 6 {
			t.Errorf("the %s names %d lists", name, n)
		}
	}
}

// The page of the configuration names each kind of disk with its options.
func TestManualNamesBackends(t *testing.T) {
	_, text, found := strings.Cut(writeManual(t)["viablk.yaml.5"], ".SH BACKENDS\n")
	if !found {
		t.Fatal("there is no section about backends")
	}
	for _, k := range backend.Kinds() {
		if !strings.Contains(text, "\n"+k.Scheme+":") && !strings.Contains(text, ", "+k.Scheme+":") {
			t.Errorf("the page does not name %s:", k.Scheme)
		}
		for _, option := range k.Options {
			if !strings.Contains(text, " "+option) {
				t.Errorf("the page does not say that %s: has %s", k.Scheme, option)
			}
		}
	}
}

// Every command has a page with its flags, every key is in the page of the
// configuration, and there are no other pages.
func TestManualIsWhole(t *testing.T) {
	pages := writeManual(t)
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	commands, flags := 0, 0
	var inspect func(cmd *cobra.Command)
	inspect = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		commands++
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		page := pages[name+".1"]
		for _, want := range []string{`.TH "` + strings.ToUpper(plain(name)) + `" "1" "1970-01-02"`, plain(cmd.Short), ".SH EXIT STATUS\n"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page of %q has no %q", cmd.CommandPath(), want)
			}
		}
		check := func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			flags++
			name := regexp.QuoteMeta(plain("--" + f.Name))
			item := regexp.MustCompile(`\n\.TP\n(?:\\fB\\-\w\\fR, )?\\fB` + name + `\\fR(.*)\n.{5}`).FindStringSubmatch(page)
			if argument, _ := pflag.UnquoteUsage(f); item == nil || !strings.Contains(item[1], plain(argument)) {
				t.Errorf("the page of %q has no flag --%s", cmd.CommandPath(), f.Name)
			}
		}
		cmd.LocalFlags().VisitAll(check)
		cmd.InheritedFlags().VisitAll(check)
		for _, child := range cmd.Commands() {
			inspect(child)
		}
	}
	inspect(root)
	if commands != len(pages)-1 || commands < 20 || flags < 100 {
		t.Errorf("%d commands with %d flags have %d pages", commands, flags, len(pages))
	}
	for _, s := range append(config.Defaults(), config.ExportDefaults()...) {
		_, item, found := strings.Cut(pages["viablk.yaml.5"], "\n.TP\n"+bold(s.Key))
		if _, text, _ := strings.Cut(item, "\n"); !found || len(text) < 5 || strings.HasPrefix(text, ".") {
			t.Errorf("viablk.yaml.5 says nothing of %s", s.Key)
		}
	}
	if len(exportUsages) != len(config.ExportDefaults()) {
		t.Errorf("%d keys of an export are described, there are %d", len(exportUsages), len(config.ExportDefaults()))
	}
}

// The example in the manual is right.
func TestManualExample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "viablk.yaml")
	if err := os.WriteFile(path, []byte(configExample), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := config.Load(path, nil, checkBackend)
	if err != nil {
		t.Fatal(err)
	}
	if x := e.Config.Target.Exports; len(x) != 2 || x[1].SessionLimits.IOPS != 5000 || e.Config.Log.Format != "json" {
		t.Errorf("got %+v", e.Config)
	}
}

func TestManualDate(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := manualDate(); exitCode(err) != exitUsage {
		t.Errorf("got %v", err)
	}
}

// Text that roff would interpret appears literally.
func TestRoff(t *testing.T) {
	r := new(roff)
	r.prose("\n.dot 'quoted' a\\b\nsee --run-this.\n  verbatim --x\n\n  more\nand on\n\nnext")
	want := `\&.dot \(aqquoted\(aq a\eb
see \fB\-\-run\-this\fR.
.PP
.RS 4
.EX
verbatim \-\-x

more
.EE
.RE
.PP
and on
.PP
next
`
	if got := r.text.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Each line has the words that shells offer and the directive: 4 is nothing, 0
// files, 16 folders.
func TestCompletion(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"target --log-level |", "debug info warn error :4"},
		{"target --log-level=|", "debug info warn error :4"},
		{"up --tls |", "off on require :4"},
		{"list -o |", "table json :4"},
		{"bench reg -o |", "table json markdown :4"},
		{"status -o |", "table json wide latency udev :4"},
		{"bench via --mode |", "pingpong window rdma-write rdma-read post-rate pollscale udp tcp :4"},
		{"bench policy --charge ucx,|", "ucx,nothing ucx,cibr :4"},
		{"bench via --wait |", "poll spin sleep :4"},
		{"bench via --wait poll,|", "poll,spin poll,sleep :4"},
		{"bench via --offloads |", "auto off :4"},
		{"bench via --provider |", strings.Join(providerNames(), " ") + " :4"},
		{"bench reg --provider |", strings.Join(providerNames(), " ") + " :4"},
		{"bench policy --charge |", "nothing ucx cibr :4"},
		{"bench policy --policy |", "auto ristretto clock :4"},
		{"bench via --sizes |", ":4"},
		{"bench via -o |", "table json benchfmt :4"},
		{"bench copy -o |", "table json markdown :4"},
		{"bench disk -o |", "table json :4"},
		{"target --export disk|", ":6"},
		{"target --export disk=|", "disk=nbd:// disk=nbds:// disk=nbd+unix:/// disk=limit: disk=memory: disk=file: disk=mmap: disk=cow: disk=crc: disk=null: disk=run: disk=rbd: disk=delay: disk=fault: disk=volatile: :6"},
		{"target --export disk=m|", "disk=memory: disk=mmap: :6"},
		{"export add disk=limit:iops=1:volatile:mm|", "disk=limit:iops=1:volatile:mmap: :6"},
		{"target --export disk=limit:iops=1|", ":6"},
		{"target --export disk=file:testdata/s|", "disk=file:testdata/script/ :6"},
		{"target --export disk=mmap:testdata/script/reloadc|", "disk=mmap:testdata/script/reloadcommand.txtar :6"},
		{"target --export disk=file:a?|", "disk=file:a?create= disk=file:a?readonly=1 disk=file:a?direct=1 disk=file:a?lock=0 disk=file:a?identity=0 disk=file:a?io=auto disk=file:a?io=uring disk=file:a?io=threads :6"},
		{"target --export disk=file:a?create=1G&d|", "disk=file:a?create=1G&direct=1 :6"},
		{"target --export disk=cow:a,b?create=1&|", "disk=cow:a,b?create=1&readonly=1 disk=cow:a,b?create=1&lock=0 disk=cow:a,b?create=1&identity=0 disk=cow:a,b?create=1&io=auto disk=cow:a,b?create=1&io=uring disk=cow:a,b?create=1&io=threads :6"},
		{"info --can |", "cache connect df fast-zero flush fua multi-conn read trim write zero :4"},
		{"info --is |", "read-only rotational tls :4"},
		{"attach --trace |", "off via :4"},
		{"attach --device a|", "auto :0"},
		{"attach --copy-mode |", "auto bounce zerocopy :4"},
		{"bench via --reliability |", "unreliable delivery reception :4"},
		{"bench reg --chart-format |", "svg png :4"},
		{"bench reg --chart |", ":16"},
		{"target --tls-certificates |", ":16"},
		{"target --config |", ":0"},
		{"target --admin |", ":0"},
		{"target --listen |", "nbd:// nbds:// nbd+unix:/// via+shm:/// via+roce:// via+verbs:// :6"},
		{"target |", ":4"},
		{"config check |", ":0"},
		{"config check a.yaml |", ":4"},
		{"config show |", ":0"},
		{"detach |", ":0"},
		{"status |", ":0"},
		{"identity |", "accept renew show :4"},
		{"identity show |", ":0"},
		{"identity show disk.img |", ":4"},
		{"identity renew --state-folder |", ":16"},
		{"snapshot |", "create delete ls rollback :4"},
		{"snapshot create |", ":0"},
		{"snapshot create disk.cow |", ":4"},
		{"pki init |", ":16"},
		{"pki issue |", ":16"},
		{"pki issue ca |", "server client :4"},
		{"pki issue ca s|", "server client :4"},
		{"pki issue ca server |", ":4"},
		{"info |", "nbd:// nbds:// nbd+unix:/// via+shm:/// via+roce:// via+verbs:// :6"},
		{"pki i|", "init issue :4"},
		{"version --out|", "--output :4"},
	} {
		args := strings.Split("__completeNoDesc "+c.line, " ")
		args[len(args)-1] = strings.TrimSuffix(args[len(args)-1], "|")
		var stdout, stderr bytes.Buffer
		if code := run(args, nil, &stdout, &stderr); code != 0 {
			t.Errorf("%s: exit code %d: %s", c.line, code, &stderr)
		}
		if got := strings.Join(strings.Fields(stdout.String()), " "); got != c.want {
			t.Errorf("%s offers %q, want %q", c.line, got, c.want)
		}
	}
}
