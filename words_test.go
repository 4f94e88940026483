package viablk_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// formsOf returns the terms by form.
func formsOf(terms []term) map[string]*term {
	all := make(map[string]*term)
	for i := range terms {
		for form := range strings.SplitSeq(terms[i].forms, "|") {
			all[form] = &terms[i]
		}
	}
	return all
}

// phrase is one form of a term, split into words.
type phrase struct {
	words []string
	term  *term
}

// phrasesByWord are the phrases by their first word.
var phrasesByWord = func() map[string][]phrase {
	all := make(map[string][]phrase)
	for form, t := range formsOf(phrases) {
		words := strings.Fields(form)
		all[words[0]] = append(all[words[0]], phrase{words, t})
	}
	return all
}()

// words returns the words of a text in lower case, and a period at the end of
// each sentence or part of one.
func words(text string) []string {
	var all []string
	start := -1
	flush := func(end int) {
		if start >= 0 {
			all = append(all, strings.ToLower(text[start:end]))
			start = -1
		}
	}
	for i, r := range text {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_':
			if start < 0 {
				start = i
			}
		case strings.ContainsRune(" \t\n-'’`*", r):
			flush(i)
		default:
			flush(i)
			all = append(all, ".")
		}
	}
	flush(len(text))
	return all
}

// begins reports whether words begin with a pattern, in which "…" stands for
// one to four words.
func begins(words, pattern []string) bool {
	if len(pattern) == 0 {
		return true
	}
	if pattern[0] != "…" {
		return len(words) > 0 && words[0] == pattern[0] && begins(words[1:], pattern[1:])
	}
	for n := 1; n <= 4 && n < len(words) && words[n-1] != "."; n++ {
		if begins(words[n:], pattern[1:]) {
			return true
		}
	}
	return false
}

// checkPhrases returns the banned phrases of a text.
func checkPhrases(where, text string) []string {
	var bad []string
	all := words(text)
	for i, w := range all {
		for _, p := range phrasesByWord[w] {
			if begins(all[i:], p.words) {
				bad = append(bad, fmt.Sprintf("%s: the phrase %q: write %s", where, strings.Join(p.words, " "), p.term.use))
			}
		}
	}
	return bad
}

// partsOf splits a name at underscores, digits and capitals, in lower case.
func partsOf(name string) []string {
	var all []string
	runes := []rune(name)
	start := 0
	flush := func(end int) {
		if end > start {
			all = append(all, strings.ToLower(string(runes[start:end])))
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			flush(i)
			start = i + 1
		case i > start && unicode.IsUpper(r):
			last := unicode.IsLower(runes[i-1])
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if last || next {
				flush(i)
			}
		}
	}
	flush(len(runes))
	return all
}

// usage counts where words with homes are used, to find homes without use.
type usage map[string]bool

// checkName returns what is wrong with a name of a folder.
func (u usage) checkName(where, dir, name string) []string {
	bad := checkPhrases(where+": "+name, strings.Join(partsOf(name), " "))
	for _, part := range partsOf(name) {
		if t := partForms[part]; t != nil {
			u[t.forms+" "+dir] = true
			if !slices.Contains(t.homes, dir) {
				bad = append(bad, fmt.Sprintf("%s: %s has the part %q: write %s", where, name, part, t.use))
			}
		}
		if t := meaningForms[part]; t != nil {
			u[t.forms+" "+dir] = true
			if !slices.Contains(t.homes, dir) {
				bad = append(bad, fmt.Sprintf("%s: %s uses %q, which is %q, outside of %v", where, name, part, t.use, t.homes))
			}
		}
	}
	return bad
}

var (
	partForms    = formsOf(parts)
	meaningForms = formsOf(meanings)
	keyForms     = formsOf(keys)
	verbForms    = formsOf(verbs)
	openingForms = formsOf(openings)
)

// declared calls f with each name that a file declares.
func declared(file *ast.File, f func(*ast.Ident)) {
	idents := func(names []*ast.Ident) {
		for _, n := range names {
			f(n)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f(n.Name)
		case *ast.TypeSpec:
			f(n.Name)
		case *ast.ValueSpec:
			idents(n.Names)
		case *ast.Field:
			idents(n.Names)
		case *ast.LabeledStmt:
			f(n.Label)
		case *ast.ImportSpec:
			if n.Name != nil {
				f(n.Name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, x := range n.Lhs {
					if id, ok := x.(*ast.Ident); ok {
						f(id)
					}
				}
			}
		case *ast.RangeStmt:
			for _, x := range []ast.Expr{n.Key, n.Value} {
				if id, ok := x.(*ast.Ident); ok && n.Tok == token.DEFINE {
					f(id)
				}
			}
		}
		return true
	})
}

// functions calls f with the name of each function and method, those of
// interfaces too.
func functions(file *ast.File, f func(*ast.Ident)) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f(n.Name)
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, name := range m.Names {
					f(name)
				}
			}
		}
		return true
	})
}

// checkGo returns what is wrong with the words of a Go file.
func (u usage) checkGo(name, content string) []string {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{fmt.Sprintf("%s: does not parse: %v", name, err)}
	}
	dir, isTest := path.Dir(name), strings.HasSuffix(name, "_test.go")
	at := func(p token.Pos) string { return fmt.Sprintf("%s:%d", name, files.Position(p).Line) }
	var bad []string
	declared(f, func(id *ast.Ident) { bad = append(bad, u.checkName(at(id.Pos()), dir, id.Name)...) })
	functions(f, func(id *ast.Ident) { bad = append(bad, u.checkVerb(at(id.Pos()), dir, id.Name)...) })
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag != nil {
				bad = append(bad, u.checkTag(at(n.Pos()), dir, n.Tag.Value)...)
			}
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && !keepsWords(name) {
				bad = append(bad, checkPhrases(at(n.Pos()), s)...)
				if strings.Contains(s, "\n") && !isTest { // a help text
					bad = append(bad, checkOpenings(at(n.Pos()), s)...)
				}
			}
		}
		return true
	})
	lines := strings.Split(content, "\n")
	for _, group := range f.Comments {
		if !keepsWords(name) {
			bad = append(bad, checkPhrases(at(group.Pos()), group.Text())...)
		}
		bad = append(bad, checkOpenings(at(group.Pos()), group.Text())...)
		for _, c := range group.List {
			bad = append(bad, checkWidth(name, files.Position(c.Pos()), c.Text, lines)...)
		}
	}
	return bad
}

// keepsWords reports whether a file is this one, which spells what it refuses.
func keepsWords(name string) bool { return name == "tidy_test.go" }

// checkVerb returns what is wrong with the verb of a function.
func (u usage) checkVerb(where, dir, name string) []string {
	t := verbForms[partsOf(name + "_")[0]]
	if t == nil {
		return nil
	}
	if standardVerbs[dir+"."+name] != "" {
		u[dir+"."+name] = true
		return nil
	}
	return []string{fmt.Sprintf("%s: the function %s begins with %q: write %s", where, name, t.forms, t.use)}
}

// checkTag returns what is wrong with the keys of a field's tag.
func (u usage) checkTag(where, dir, literal string) []string {
	tag, _ := strconv.Unquote(literal)
	var bad []string
	for _, format := range []string{"json", "mapstructure"} {
		key, _, _ := strings.Cut(reflect.StructTag(tag).Get(format), ",")
		if t := keyForms[key]; t != nil {
			bad = append(bad, fmt.Sprintf("%s: the key %q: write %s", where, key, t.use))
			continue
		}
		bad = append(bad, u.checkName(where, dir, key)...)
	}
	return bad
}

// Markup that ends a paragraph, and what begins one.
var (
	listItem = regexp.MustCompile(`^\s*([-*•]|\d+[.)])\s+`)
	sentence = regexp.MustCompile(`[.!?][")]?\s+`)
)

// sentences returns the sentences of each paragraph of prose. Code, tables and
// headings are no prose.
func sentences(text string) [][]string {
	var all [][]string
	var paragraph strings.Builder
	flush := func() {
		if s := strings.TrimSpace(paragraph.String()); s != "" {
			var list []string
			for {
				cut := sentence.FindStringIndex(s)
				if cut == nil {
					break
				}
				list, s = append(list, s[:cut[0]+1]), s[cut[1]:]
			}
			all = append(all, append(list, s))
		}
		paragraph.Reset()
	}
	inCode := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			inCode = !inCode
			flush()
		case inCode:
		case trimmed == "" || trimmed[0] == '#' || trimmed[0] == '|' || line[0] == '\t':
			flush()
		case listItem.MatchString(line):
			flush()
			paragraph.WriteString(listItem.ReplaceAllString(line, ""))
		default:
			paragraph.WriteString(line)
		}
	}
	flush()
	return all
}

// checkOpenings returns the sentences that do not begin with an actor.
func checkOpenings(where, text string) []string {
	var bad []string
	for p, paragraph := range sentences(text) {
		for i, s := range paragraph {
			all := strings.Fields(s)
			if len(all) < 2 || strings.HasSuffix(s, "?") {
				continue
			}
			for _, opening := range []string{all[0], all[0] + " " + all[1]} {
				t := openingForms[opening]
				if t == nil || p+i == 0 && (opening == "How" || opening == "Why") {
					continue
				}
				bad = append(bad, fmt.Sprintf("%s: a sentence begins with %q: begin with %s", where, opening, t.use))
			}
		}
	}
	return bad
}

// checkWidth returns the lines of a comment that are too wide.
func checkWidth(name string, at token.Position, text string, lines []string) []string {
	var bad []string
	for i, part := range strings.Split(text, "\n") {
		line := lines[at.Line-1+i]
		if strings.Contains(part, "://") {
			continue
		}
		if i == 0 && strings.TrimSpace(line[:at.Column-1]) != "" {
			if n := utf8.RuneCountInString(part); n > maximumTrailing {
				bad = append(bad, fmt.Sprintf("%s:%d: the comment behind code has %d characters, at most %d are allowed", name, at.Line, n, maximumTrailing))
			}
			continue
		}
		if n := utf8.RuneCountInString(line); n > maximumWidth {
			bad = append(bad, fmt.Sprintf("%s:%d: the comment is %d columns wide, at most %d are allowed", name, at.Line+i, n, maximumWidth))
		}
	}
	return bad
}

// checkFile returns what is wrong with a tracked file as such.
func checkFile(name, content string) []string {
	if debris.MatchString(path.Base(name)) {
		return []string{name + ": a tool left this file behind"}
	}
	if strings.IndexByte(content, 0) >= 0 && len(content) > maximumBinary {
		return []string{fmt.Sprintf("%s: is binary and has %d bytes, at most %d are allowed", name, len(content), maximumBinary)}
	}
	return nil
}

// checkWords returns every violation of the rules above in the files by name,
// sorted, and what is used of the words with homes.
func checkWords(files map[string]string) ([]string, usage) {
	var bad []string
	used := make(usage)
	for name, content := range files {
		bad = append(bad, checkFile(name, content)...)
		stem, _, _ := strings.Cut(path.Base(name), ".")
		switch path.Ext(name) {
		case ".go":
			bad = append(bad, used.checkName(name, path.Dir(name), stem)...)
			bad = append(bad, used.checkName(name, path.Dir(name), strings.ReplaceAll(path.Dir(name), "/", "_"))...)
			bad = append(bad, used.checkGo(name, content)...)
		case ".md":
			for i, s := range paragraphs(content) {
				where := fmt.Sprintf("%s:%d", name, i)
				bad = append(bad, checkPhrases(where, s)...)
				bad = append(bad, checkOpenings(where, s)...)
			}
		default:
			if !strings.Contains(name, "/testdata/fuzz/") && strings.IndexByte(content, 0) < 0 && name != "go.sum" {
				for i, line := range strings.Split(content, "\n") {
					bad = append(bad, checkPhrases(fmt.Sprintf("%s:%d", name, i+1), line)...)
				}
			}
		}
	}
	slices.Sort(bad)
	return slices.Compact(bad), used
}

// paragraphs returns the paragraphs of a text by the number of their first
// line.
func paragraphs(text string) map[int]string {
	all := make(map[int]string)
	first, inCode := 1, false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inCode = !inCode
		}
		if strings.TrimSpace(line) == "" && !inCode {
			first = i + 2
			continue
		}
		all[first] += line + "\n"
	}
	return all
}
