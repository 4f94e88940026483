package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample has what a chart can have.
func sample() *Chart {
	c := &Chart{Title: "latency <one way>", X: "size (bytes)", Y: "time (µs)", LogX: true, LogY: true}
	for x := 64.0; x <= 1<<20; x *= 2 {
		c.Add("polling", x, x/1000)
		c.Add("sleeping & waking", x, 5+x/900)
	}
	c.References = []Reference{
		{Label: "a level at 8.46 µs", Y: 8.46},
		{Label: "a point at 4 KiB", X: 4096, Y: 250},
	}
	return c
}

// svg draws a chart and returns its elements' names and its texts.
func svg(t *testing.T, c interface {
	Write(w io.Writer, format string) error
},
) (elements map[string]int, texts string) {
	t.Helper()
	var b bytes.Buffer
	if err := c.Write(&b, "svg"); err != nil {
		t.Fatal(err)
	}
	elements = make(map[string]int)
	var text strings.Builder
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements, text.String()
		}
		if err != nil {
			t.Fatalf("the chart is no XML: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			text.Write(token)
		}
	}
}

func TestEverythingIsDrawn(t *testing.T) {
	elements, texts := svg(t, sample())
	for _, want := range []string{
		"latency <one way>", "size (bytes)", "time (µs)", "polling", "sleeping & waking",
		"a level at 8.46 µs", "a point at 4 KiB", "64Ki", "0.1", "100",
	} {
		if !strings.Contains(texts, want) {
			t.Errorf("the text %q is not in the chart", want)
		}
	}
	without := sample()
	without.Series = without.Series[:1]
	without.References = nil
	fewer, _ := svg(t, without)
	if elements["path"] < fewer["path"]+3 {
		t.Errorf("a series, a level and a point are %d paths, without them %d", elements["path"], fewer["path"])
	}
}

func TestLinearAxes(t *testing.T) {
	c := &Chart{X: "VIs", Y: "ns"}
	c.Add("poll", 0, 0)
	c.Add("poll", 1000, -3)
	if _, texts := svg(t, c); !strings.Contains(texts, "1000") {
		t.Errorf("the axis does not reach 1000: %q", texts)
	}
}

// One point has no range, but its axes have one.
func TestOnePoint(t *testing.T) {
	for _, log := range []bool{true, false} {
		c := &Chart{LogX: log, LogY: log}
		c.Add("poll", 1, 1)
		if elements, texts := svg(t, c); elements["path"] == 0 || !strings.Contains(texts, "2") {
			t.Errorf("logarithmic %v: %v, %q", log, elements, texts)
		}
	}
}

func TestMarksOfAxes(t *testing.T) {
	for _, c := range []struct {
		marks     marks
		low, high float64
		want      string
	}{
		{binary, 64, 1024, "64 128 256 512 1Ki"},
		{binary, 1, 1 << 16, "1 - 4 - 16 - 64 - 256 - 1Ki - 4Ki - 16Ki - 64Ki"},
		{decimal, 0.3, 30, "0.5 1 2 5 10 20"},
		{decimal, 1, 1e6, "1 - - 10 - - 100 - - 1000 - - 10000 - - 100000 - - 1e+06"},
		{decimal, 0, 10, ""},
		{decimal, 1, math.Inf(1), ""},
	} {
		var got []string
		for _, tick := range c.marks.Ticks(c.low, c.high) {
			label := tick.Label
			if label == "" {
				label = "-"
			}
			got = append(got, label)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v from %v to %v has the marks %q, want %q", c.marks, c.low, c.high, got, c.want)
		}
	}
}

func TestFilesByName(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "a.png")
	if err := sample().Save(name); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if size := picture.Bounds().Size(); size.X < 500 || size.Y < 300 {
		t.Errorf("the picture has %v points", size)
	}
	if err := sample().Save(filepath.Join(folder, "a.svg")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"a.pdf", "a", filepath.Join("nowhere", "a.svg")} {
		if err := sample().Save(filepath.Join(folder, name)); err == nil {
			t.Errorf("%s was drawn", name)
		}
	}
}

func TestPointsWithoutPlace(t *testing.T) {
	for name, change := range map[string]func(*Chart){
		"zero on a logarithmic axis":     func(c *Chart) { c.Add("polling", 0, 1) },
		"negative on a logarithmic axis": func(c *Chart) { c.Add("polling", 1, -1) },
		"no number":                      func(c *Chart) { c.Add("polling", math.NaN(), 1) },
		"infinite":                       func(c *Chart) { c.Add("polling", 1, math.Inf(1)) },
		"level of zero":                  func(c *Chart) { c.References = []Reference{{Label: "none", Y: 0}} },
		"reference of zero":              func(c *Chart) { c.References = []Reference{{Label: "none", X: 1, Y: 0}} },
		"no series":                      func(c *Chart) { c.Series = nil },
		"series without points":          func(c *Chart) { c.Series = append(c.Series, Series{Name: "empty"}) },
	} {
		c := sample()
		change(c)
		if err := c.Write(io.Discard, "svg"); err == nil {
			t.Errorf("%s was drawn", name)
		}
	}
}
