package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
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
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// printMarkdown prints aligned rows as a table of Markdown, figures to the right.
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

// printable quotes text that came from outside if it would disturb a terminal or
// a table.
func printable(s string) string {
	quoted := fmt.Sprintf("%+q", s)
	if s == "" || strings.Contains(s, "\t") || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}
