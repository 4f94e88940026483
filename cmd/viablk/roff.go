package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// roff is a manual page in the making, in the macros of man(7): those that man
// of groff and mandoc both know.
type roff struct{ text bytes.Buffer }

// escapes are the characters that roff would read otherwise than they stand.
var escapes = strings.NewReplacer(
	`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`, `"`, `\(dq`,
)

// plain returns text that appears literally. A line that begins with a dot
// would be a request.
func plain(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

func bold(text string) string   { return `\fB` + plain(text) + `\fR` }
func italic(text string) string { return `\fI` + plain(text) + `\fR` }

// line writes a line of roff.
func (r *roff) line(format string, arguments ...any) { fmt.Fprintf(&r.text, format+"\n", arguments...) }

// header begins the page.
func (r *roff) header(name, section, date, source string) {
	r.line(`.TH "%s" "%s" "%s" "%s" "viablk"`, plain(strings.ToUpper(name)), section, date, plain(source))
	r.line(".nh\n.ad l") // flags and variables are to be found as they are written
}

func (r *roff) section(title string) { r.line(".SH %s", plain(title)) }

// item begins an item of a list: a line of roff as its tag, a paragraph of roff
// below it, and prose may follow.
func (r *roff) item(tag, text string) {
	r.line(".TP\n%s\n%s", tag, text)
}

// flagInRoff matches a flag in prose that is roff already.
var flagInRoff = regexp.MustCompile(`\\-\\-[a-z]+(?:\\-[a-z]+)*`)

// flowing returns a line of prose, its flags in bold.
func flowing(line string) string {
	return flagInRoff.ReplaceAllString(plain(line), `\fB${0}\fR`)
}

// prose writes paragraphs. Indented lines appear literally, as in the help of a
// command. The first paragraph follows the text before it without a space.
func (r *roff) prose(text string) {
	first, verbatim, gap := true, false, false
	end := func() {
		if verbatim {
			r.line(".EE\n.RE")
		}
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.TrimSpace(line) == "":
			gap = true
			continue
		case strings.HasPrefix(line, "  "), strings.HasPrefix(line, "\t"):
			if !verbatim && !first {
				r.line(".PP")
			}
			if !verbatim {
				r.line(".RS 4\n.EX")
			} else if gap {
				r.line("")
			}
			r.line("%s", plain(strings.TrimPrefix(strings.TrimPrefix(line, "\t"), "  ")))
			first, verbatim, gap = false, true, false
			continue
		case verbatim, gap && !first:
			end()
			r.line(".PP")
		}
		r.line("%s", flowing(line))
		first, verbatim, gap = false, false, false
	}
	end()
}
