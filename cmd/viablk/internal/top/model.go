// Package top is the live view of what happens at exports.
//
// [Model] is a pure state machine: Update takes keys and states of processes,
// View draws. [Run] gives it a terminal.
package top

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
)

// Interval is between two states.
const Interval = 500 * time.Millisecond

// Source returns the present state of processes.
type Source func(context.Context) (activity.State, error)

// Next waits for the time of a state and returns it.
func (s Source) Next(ctx context.Context, at time.Time) (activity.State, error) {
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return activity.State{}, context.Cause(ctx)
	}
	return s(ctx)
}

// Model is the state of the view.
type Model struct {
	ctx    context.Context // of the program, which ends it
	source Source

	width, height int
	tracker       activity.Tracker
	now           activity.Rows
	rows          []activity.Row // of now, those that match, in order
	failure       error          // of the last state
	order         int            // index into orders
	reverse       bool
	filter        string
	typing        bool          // a filter
	selected      *activity.Key // the row that a person marked; nil: the first
	first         int           // row at the top
	detail        *activity.Key // the export whose clients are shown
}

// sampled is a state that has arrived.
type sampled struct {
	began time.Time
	state activity.State
	err   error
}

// NewModel returns a model whose states come from a source until ctx ends.
func NewModel(ctx context.Context, source Source) *Model {
	return &Model{ctx: ctx, source: source, width: 80, height: 24}
}

// Run shows the view on the terminal until a person or ctx ends it.
func Run(ctx context.Context, source Source, options ...tea.ProgramOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := tea.NewProgram(NewModel(ctx, source), append(options, tea.WithContext(ctx))...).Run()
	if err != nil {
		return fmt.Errorf("show: %w", err)
	}
	return nil
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.sample(time.Now()) }

// sample gets a state at a time.
func (m *Model) sample(at time.Time) tea.Cmd {
	return func() tea.Msg {
		s, err := m.source.Next(m.ctx, at)
		return sampled{began: at, state: s, err: err}
	}
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case sampled:
		if m.failure = msg.err; msg.err == nil {
			m.now = m.tracker.Add(msg.state)
		}
		m.arrange()
		next := msg.began.Add(Interval)
		if late := time.Now(); next.Before(late) {
			next = late // the process needs its time
		}
		return m, m.sample(next)
	case tea.PasteMsg:
		if m.typing {
			m.setFilter(m.filter + msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	m.scroll()
	return m, nil
}

// press handles a key.
func (m *Model) press(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	if m.typing {
		m.typeKey(k)
		return nil
	}
	switch k.String() {
	case "q":
		return tea.Quit
	case "esc":
		if m.detail == nil {
			m.setFilter("")
		}
		m.detail = nil
	case "enter":
		switch {
		case m.detail != nil:
			m.detail = nil
		case len(m.rows) > 0:
			key := m.rows[m.index()].Key
			m.detail = &key
		}
	case "/":
		m.typing, m.detail = true, nil
	case "r":
		m.reverse = !m.reverse
		m.arrange()
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.room())
	case "pgdown":
		m.move(m.room())
	case "home":
		m.move(-len(m.rows))
	case "end":
		m.move(len(m.rows))
	default:
		if i := slices.IndexFunc(orders, func(o order) bool { return o.key == k.String() }); i >= 0 {
			m.order, m.reverse = i, false
			m.arrange()
		}
	}
	return nil
}

// longestFilter bounds the filter, in bytes.
const longestFilter = 200

// typeKey edits the filter.
func (m *Model) typeKey(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter("")
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.setFilter(m.filter[:len(m.filter)-n])
	default:
		m.setFilter(m.filter + k.Text)
	}
}

// setFilter changes the filter, unless it becomes too long.
func (m *Model) setFilter(text string) {
	if len(text) <= longestFilter {
		m.filter = text
	}
	m.arrange()
}

// arrange chooses and sorts the rows. The marked one stays marked.
func (m *Model) arrange() {
	m.rows = matching(m.now.Exports, m.filter)
	sortRows(m.rows, orders[m.order], m.reverse)
	m.scroll()
}

// index returns the place of the marked row. If it is not there, or nothing
// was marked, that is the first one.
func (m *Model) index() int {
	if m.selected == nil {
		return 0
	}
	return max(0, slices.IndexFunc(m.rows, func(r activity.Row) bool { return r.Key == *m.selected }))
}

// move marks another row.
func (m *Model) move(by int) {
	if m.detail != nil || len(m.rows) == 0 {
		return
	}
	key := m.rows[max(0, min(m.index()+by, len(m.rows)-1))].Key
	m.selected = &key
	m.scroll()
}

// scroll brings the marked row into view.
func (m *Model) scroll() {
	i := m.index()
	m.first = max(0, min(m.first, i, len(m.rows)-1))
	m.first = max(m.first, i-m.room()+1)
}

// Lines of the screen that are no rows: the summary, the message, the heading
// and the keys.
const frame = 4

// room returns how many rows fit.
func (m *Model) room() int { return max(1, m.height-frame) }
