package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestArgumentNames(t *testing.T) {
	for use, want := range map[string]struct {
		required, optional []string
		unlimited          bool
	}{
		"version":                            {},
		"list URI":                           {required: []string{"URI"}},
		"status [DEVICE]":                    {optional: []string{"DEVICE"}},
		"attach [URI|nbdN] [--device DEV]":   {optional: []string{"URI|nbdN"}},
		"target --listen URI… --export X…":   {},
		"issue FOLDER server|client NAME…":   {required: []string{"FOLDER", "server|client", "NAME"}, unlimited: true},
		"help [COMMAND…]":                    {optional: []string{"COMMAND…"}},
		"detach DEVICE|SOCKET [--force yes]": {required: []string{"DEVICE|SOCKET"}},
	} {
		required, optional, unlimited := argumentNames(use)
		if !slices.Equal(required, want.required) || !slices.Equal(optional, want.optional) || unlimited != want.unlimited {
			t.Errorf("%q: got %v %v %v", use, required, optional, unlimited)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"lisen", "listen", 1}, {"chekc", "check", 2}, {"abc", "abc", 0}, {"kitten", "sitting", 3}} {
		if got, back := editDistance(c.a, c.b), editDistance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}

// Each mistake on the command line is one line that names what to write.
func TestMistakesOnTheCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"stats":                      `viablk: unknown command "stats"; did you mean status?; see viablk --help`,
		"config chekc":               `viablk: unknown command "chekc"; did you mean check?; see viablk config --help`,
		"bench nbd":                  `viablk: unknown command "nbd"; see viablk bench --help`,
		"pki ini":                    `viablk: unknown command "ini"; did you mean init?; see viablk pki --help`,
		"target --lisen x":           `viablk: unknown flag --lisen; did you mean --listen?; see viablk target --help`,
		"target --spin 1ms":          `viablk: unknown flag --spin; did you mean --busy-poll?; see viablk target --help`,
		"attach --nbd-spin 1ms":      `viablk: unknown flag --nbd-spin; did you mean --nbd-busy-poll?; see viablk attach --help`,
		"bench via --spin 1ms":       `viablk: unknown flag --spin; did you mean --busy-poll?; see viablk bench via --help`,
		"target nbd://127.0.0.1":     `viablk: target takes no argument: give --listen nbd://127.0.0.1; see viablk target --help`,
		"target disk0=memory:1G":     `viablk: target takes no argument: give --export disk0=memory:1G; see viablk target --help`,
		"up extra":                   `viablk: up takes no argument: unexpected "extra"; see viablk up --help`,
		"list":                       `viablk: list: URI is missing; see viablk list --help`,
		"list nbd://h nbd://i":       `viablk: list: unexpected argument "nbd://i"; see viablk list --help`,
		"info":                       `viablk: info: URI is missing; see viablk info --help`,
		"help nothing":               `viablk: unknown command "nothing"; see viablk --help`,
		"help config foo":            `viablk: unknown command "foo"; see viablk config --help`,
		"list nbd://h --output yaml": `viablk: --output is table or json, not "yaml"; see viablk list --help`,
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(line), strings.NewReader(""), &stdout, &stderr); code != exitUsage || stderr.String() != want+"\n" {
			t.Errorf("%s: exit code %d, %q, want %q", line, code, stderr.String(), want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	for _, flag := range []string{"--version", "-v", "version"} {
		var stdout, stderr bytes.Buffer
		if code := run([]string{flag}, strings.NewReader(""), &stdout, &stderr); code != exitOK || !strings.HasPrefix(stdout.String(), "viablk  "+version().Version) {
			t.Errorf("%s: exit code %d, %q %q", flag, code, stdout.String(), stderr.String())
		}
	}
}

func TestFigureColumnsAreRightAligned(t *testing.T) {
	var out bytes.Buffer
	a := &app{stdout: &out, output: "table"}
	err := a.printTable([][]string{{"NAME", "READS", "NOTE"}, {"a", "5", ""}, {"bcd", "1000", "x\x1b"}, {"e", "-", "é"}})
	want := "NAME  READS  NOTE\n" +
		"a         5  -\n" +
		"bcd    1000  \"x\\x1b\"\n" +
		"e         -  é\n"
	if err != nil || out.String() != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, out.String(), want)
	}
}
