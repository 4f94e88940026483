package block

import "testing"

func TestCountsCountEveryOperation(t *testing.T) {
	var a, sum Counts
	for i, op := range []Op{Read, Write, Flush, Trim, WriteZeroes} {
		for range i + 1 {
			a.Count(op, 10)
		}
	}
	want := Counts{Reads: 1, Writes: 2, Flushes: 3, Trims: 4, WriteZeroes: 5, BytesRead: 10, BytesWritten: 20}
	if a != want {
		t.Errorf("counted %+v, want %+v", a, want)
	}
	sum.Add(&a)
	sum.Add(&a)
	want = Counts{Reads: 2, Writes: 4, Flushes: 6, Trims: 8, WriteZeroes: 10, BytesRead: 20, BytesWritten: 40}
	if sum != want {
		t.Errorf("the sum is %+v, want %+v", sum, want)
	}
}
