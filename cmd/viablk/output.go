package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/viablk/viablk/cmd/viablk/internal/show"
)

// printJSON prints a document.
func (a *app) printJSON(document any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(document); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// printTable prints rows in columns; the first row is the heading.
func (a *app) printTable(rows [][]string) error {
	if a.output == "markdown" {
		return a.printMarkdown(rows)
	}
	columns := newColumns(rows)
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(columns.line(row))
	}
	if _, err := fmt.Fprint(a.stdout, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// column is how the cells of a column are set.
type column struct {
	width int  // letters
	right bool // figures end below each other
}

type columns []column

// newColumns measures rows, of which the first is the heading. A column of
// figures has nothing else below its heading but "-" and "?".
func newColumns(rows [][]string) columns {
	var cs columns
	figures := make(map[int]int)
	for n, row := range rows {
		for i, cell := range row {
			if i == len(cs) {
				cs = append(cs, column{right: true})
			}
			cell = show.Text(cell)
			cs[i].width = max(cs[i].width, utf8.RuneCountInString(cell))
			switch {
			case n == 0:
			case cell[0] >= '0' && cell[0] <= '9':
				figures[i]++
			case cell != "-" && cell != "?":
				cs[i].right = false
			}
		}
	}
	for i := range cs {
		cs[i].right = cs[i].right && figures[i] > 0
	}
	return cs
}

// line sets a row. Nothing follows its last cell.
func (cs columns) line(row []string) string {
	var b strings.Builder
	for i, cell := range row {
		cell = show.Text(cell)
		if i > 0 {
			b.WriteString("  ")
		}
		space := strings.Repeat(" ", cs[i].width-utf8.RuneCountInString(cell))
		switch {
		case cs[i].right:
			b.WriteString(space + cell)
		case i == len(row)-1:
			b.WriteString(cell)
		default:
			b.WriteString(cell + space)
		}
	}
	return b.String() + "\n"
}

// printMarkdown prints aligned rows as a table of Markdown, figures to the
// right.
func (a *app) printMarkdown(rows [][]string) error {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i > 0 {
			continue
		}
		for k := range row {
			rule := "|---"
			if len(rows) > 1 && rows[1][k] != "" && strings.ContainsAny(rows[1][k][:1], "0123456789-") {
				rule += ":"
			}
			b.WriteString(rule)
		}
		b.WriteString("|\n")
	}
	if _, err := fmt.Fprint(a.stdout, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
