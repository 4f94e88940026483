package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
)

// Styles. Terminals with fewer colours, and NO_COLOR, are the business of the
// program that writes them.
var (
	headStyle    = lipgloss.NewStyle().Bold(true).Reverse(true)
	markStyle    = lipgloss.NewStyle().Reverse(true)
	faintStyle   = lipgloss.NewStyle().Faint(true)
	waitingStyle = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	failedStyle  = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
)

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	return v
}

// lines returns the screen, each line no wider than it.
func (m *Model) lines() []string {
	lines := []string{m.fit(m.summary()), m.fit(m.message())}
	if m.detail != nil {
		lines = append(lines, m.detailLines()...)
	} else {
		lines = append(lines, m.table()...)
	}
	lines = lines[:min(len(lines), max(0, m.height-1))]
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines, faintStyle.Render(m.fit(m.keys())))
}

// fit cuts a line off at the edge of the screen.
func (m *Model) fit(line string) string { return strings.TrimRight(m.cut(line), " ") }

// cut is fit of a line that may end in spaces.
func (m *Model) cut(line string) string { return cell(line, min(m.width, lipgloss.Width(line)), true) }

// cell pads text to a width, or cuts it off with an ellipsis.
func cell(text string, width int, left bool) string {
	n := lipgloss.Width(text)
	if n > width {
		kept, used := "", 0
		for _, r := range text {
			if w := lipgloss.Width(string(r)); used+w < width {
				kept, used = kept+string(r), used+w
				continue
			}
			break
		}
		text, n = kept+"…", used+1
	}
	space := strings.Repeat(" ", max(0, width-n))
	if left {
		return text + space
	}
	return space + text
}

// summary says what all processes do together.
func (m *Model) summary() string {
	var reads, writes, read, written float64
	for i := range m.now.Exports {
		r := &m.now.Exports[i]
		reads, writes = reads+r.ReadRate, writes+r.WriteRate
		read, written = read+r.ReadBytes, written+r.WriteBytes
	}
	at := "--:--:--"
	if !m.now.Time.IsZero() {
		at = m.now.Time.Format("15:04:05")
	}
	return fmt.Sprintf("viablk top %s  exports %d  clients %d  R %s/s %s MB/s  W %s/s %s MB/s",
		at, len(m.now.Exports), len(m.now.Clients), show.Rate(reads), show.Megabytes(read), show.Rate(writes), show.Megabytes(written))
}

// message says what is wrong, or which rows are shown.
func (m *Model) message() string {
	switch {
	case m.failure != nil:
		return "asking again: " + show.Text(m.failure.Error())
	case m.typing:
		return "show exports with: " + show.Text(m.filter) + "_"
	case m.filter != "":
		return fmt.Sprintf("%d of %d exports have %s", len(m.rows), len(m.now.Exports), show.Text(m.filter))
	case len(m.rows) > m.room():
		return fmt.Sprintf("rows %d to %d of %d", m.first+1, min(len(m.rows), m.first+m.room()), len(m.rows))
	case m.detail == nil:
		return degraded(m.rows)
	}
	return ""
}

// keys says what can be pressed.
func (m *Model) keys() string {
	switch {
	case m.typing:
		return "Enter keep filter  Esc show all"
	case m.detail != nil:
		return "Enter or Esc back  q quit"
	}
	var b strings.Builder
	b.WriteString("q quit  / filter  Enter clients  r reverse  sort:")
	for i, o := range orders {
		if i == m.order {
			fmt.Fprintf(&b, " [%s]%s", o.key, o.name)
		} else {
			fmt.Fprintf(&b, " %s", o.key)
		}
	}
	return b.String()
}

// table returns the heading and the rows that fit.
func (m *Model) table() []string {
	l := newLayout(m.width, m.now.Exports)
	lines := []string{headStyle.Render(m.cut(l.line(func(c *column) string { return c.name })))}
	for i := m.first; i < min(len(m.rows), m.first+m.room()); i++ {
		r := &m.rows[i]
		line := l.line(func(c *column) string { return c.cell(r) })
		lines = append(lines, m.style(r).Render(m.cut(line)))
	}
	return lines
}

// style returns how a row looks.
func (m *Model) style(r *activity.Row) lipgloss.Style {
	s := lipgloss.NewStyle()
	switch {
	case r.State == activity.Failed:
		s = failedStyle
	case r.Troubled() || r.Degraded() || r.State == activity.Draining:
		s = waitingStyle
	}
	if r.Key == m.rows[m.index()].Key {
		s = markStyle.Inherit(s)
	}
	return s
}

// line sets a row. Names and words stand to the left, figures to the right.
func (l layout) line(text func(*column) string) string {
	cells := make([]string, 0, len(l))
	for i := range l {
		cells = append(cells, cell(show.Text(text(&l[i])), l[i].width, l[i].left))
	}
	return strings.Join(cells, strings.Repeat(" ", gap))
}
