//go:build packages

package packages

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shells are what begins a shell so that it completes as packages has it,
// touches ready when it can be typed to, and writes its line to result when it
// is typed ^X.
var shells = map[string]struct{ command, begin string }{
	"bash": {"bash --noprofile --rcfile begin -i", `
		PS1=; bind 'set completion-query-items 0'; bind 'set page-completions off'; bind 'set bell-style none'
		. /usr/share/bash-completion/bash_completion
		. "$ROOT/usr/share/bash-completion/completions/viablk"
		bind -x '"\C-x": printf %s "$READLINE_LINE" > result.new; mv result.new result'
		PROMPT_COMMAND='touch ready'`},
	"zsh": {"zsh -i", `
		PS1=; fpath=("$ROOT/usr/share/zsh/vendor-completions" $fpath)
		autoload -U compinit && compinit -u -D
		tell() { print -rn -- "$BUFFER" > result.new; mv result.new result }
		zle -N tell; bindkey -e; bindkey '^X' tell
		precmd() { touch ready }`},
	"fish": {"fish -i -C 'source begin'", `
		set -g fish_greeting; set -p fish_complete_path "$ROOT/usr/share/fish/vendor_completions.d"
		function tell; commandline > result.new; mv result.new result; end
		bind \cx tell
		function fish_prompt; touch ready; end`},
}

// Input up to a tab, and the line that the shell makes of it. Files are those
// of the folder that the shell is in.
var completions = []struct{ typed, want, fish string }{
	{typed: "viablk conf", want: "viablk config "},
	{typed: "viablk config ch", want: "viablk config check "},
	{typed: "viablk config check tar", want: "viablk config check target.yaml "},
	{typed: "viablk target --log-level w", want: "viablk target --log-level warn "},
	{typed: "viablk attach --copy-mode zero", want: "viablk attach --copy-mode zerocopy "},
	{typed: "viablk up --tls-ver", want: "viablk up --tls-verify-peer "},
	// In fish folders are not told from the file cert.txt.
	{typed: "viablk pki init cer", want: "viablk pki init certs/", fish: "viablk pki init cert"},
	{typed: "viablk pki issue certs cl", want: "viablk pki issue certs client "},
	{typed: "viablk info nosuch", want: "viablk info nosuch"},
}

// Real shells complete real command lines.
func TestShells(t *testing.T) {
	t.Parallel()
	root := unpack(t, "viablk.deb")
	for name, shell := range shells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startShell(t, root, shell.command, shell.begin)
			for _, c := range completions {
				want := c.want
				if name == "fish" && c.fish != "" {
					want = c.fish
				}
				if got := s.complete(t, c.typed); got != want {
					t.Errorf("%q becomes %q, want %q", c.typed, got, want)
				}
			}
		})
	}
}

// shell is a shell on a terminal.
type shell struct {
	folder   string // that it is in
	terminal io.Writer
	ctx      context.Context
}

// startShell begins a shell and waits until it can be typed to.
func startShell(t *testing.T, root, command, begin string) *shell {
	t.Helper()
	s := &shell{folder: t.TempDir()}
	for name, text := range map[string]string{"begin": begin, ".zshrc": begin, "target.yaml": "", "cert.txt": ""} {
		must(t, os.WriteFile(filepath.Join(s.folder, name), []byte(text+"\n"), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(s.folder, "certs"), 0o700))
	// Without this folder fish fills it from all manuals, on a process that
	// outlives the shell.
	must(t, os.MkdirAll(filepath.Join(s.folder, "fish", "generated_completions"), 0o700))
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	cmd := exec.CommandContext(s.ctx, "script", "-qfec", command, "/dev/null")
	cmd.Dir, cmd.WaitDelay = s.folder, time.Second
	cmd.Env = append(os.Environ(), "ROOT="+root, "HOME="+s.folder, "ZDOTDIR="+s.folder, "XDG_CONFIG_HOME="+s.folder,
		"XDG_DATA_HOME="+s.folder, "PATH="+root+"/usr/bin:"+os.Getenv("PATH"), "TERM=dumb", "LC_ALL=C.UTF-8", "HISTFILE=/dev/null")
	terminal, err := cmd.StdinPipe()
	must(t, err)
	s.terminal = terminal
	var screen bytes.Buffer
	cmd.Stdout, cmd.Stderr = &screen, &screen
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = terminal.Close() // which ends the shell
		_ = cmd.Wait()       // a minute at most
		cancel()
		if t.Failed() {
			t.Logf("terminal: %q", &screen)
		}
	})
	s.await(t, "ready")
	return s
}

// complete types and returns the line that it makes.
func (s *shell) complete(t *testing.T, typed string) string {
	t.Helper()
	const tab, tell, clear = "\t", "\x18", "\x15"
	_, err := io.WriteString(s.terminal, typed+tab+tell)
	must(t, err)
	line := s.await(t, "result")
	must(t, os.Remove(filepath.Join(s.folder, "result")))
	_, err = io.WriteString(s.terminal, clear)
	must(t, err)
	return strings.TrimSuffix(line, "\n")
}

// await waits for a file that the shell makes, and returns what is in it.
func (s *shell) await(t *testing.T, file string) string {
	t.Helper()
	for {
		text, err := os.ReadFile(filepath.Join(s.folder, file))
		if err == nil {
			return string(text)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.ctx.Done():
			t.Fatalf("the shell has made no file %s", file)
		}
	}
}
