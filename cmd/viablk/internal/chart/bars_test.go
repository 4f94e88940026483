package chart

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

// bars has what a chart of bars can have.
func bars() *Bars {
	return &Bars{
		Title: "ratios", Y: "times nbdkit", Categories: []string{"randread 4k", "write 1m"},
		Series:     []BarSeries{{"plain", []float64{1.8, 1.1}}, {"chain <shm>", []float64{0.9, 1.3}}},
		References: []Reference{{Label: "as fast", Y: 1}},
	}
}

func TestBarsAreDrawn(t *testing.T) {
	elements, texts := svg(t, bars())
	for _, want := range []string{"ratios", "times nbdkit", "randread 4k", "write 1m", "plain", "chain <shm>", "as fast"} {
		if !strings.Contains(texts, want) {
			t.Errorf("the text %q is not in the chart", want)
		}
	}
	without := bars()
	without.Series = without.Series[:1]
	if fewer, _ := svg(t, without); elements["path"] < fewer["path"]+3 {
		t.Errorf("two bars and their entry are %d paths, without them %d", elements["path"], fewer["path"])
	}
	var b bytes.Buffer
	if err := bars().Write(&b, "png"); err != nil || !bytes.HasPrefix(b.Bytes(), []byte("\x89PNG")) {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

func TestBarsThatCannotBe(t *testing.T) {
	for name, spoil := range map[string]func(*Bars){
		"no series":     func(b *Bars) { b.Series = nil },
		"no categories": func(b *Bars) { b.Categories = nil },
		"a value less":  func(b *Bars) { b.Series[1].Values = b.Series[1].Values[:1] },
		"no number":     func(b *Bars) { b.Series[0].Values[0] = math.NaN() },
	} {
		b := bars()
		spoil(b)
		if err := b.Write(new(bytes.Buffer), "svg"); err == nil {
			t.Errorf("%s: drawn", name)
		}
	}
}
