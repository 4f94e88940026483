package rdmahost_test

import (
	"slices"
	"testing"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via/rdmahost"
)

func TestCloseReturnsUnansweredRequests(t *testing.T) {
	var s rdmahost.Requests[int]
	delivered := make(chan int, 3)
	for i := range 3 {
		if !s.Deliver(i, func(r int) { delivered <- r }, nil) {
			t.Fatalf("request %d is not delivered", i)
		}
	}
	s.Remove(1)
	left := s.Close()
	slices.Sort(left)
	if !slices.Equal(left, []int{0, 2}) {
		t.Errorf("requests %v are pending, want 0 and 2", left)
	}
	s.Wait()
	if len(delivered) != 3 {
		t.Errorf("the consumer was called %d times, want 3", len(delivered))
	}
	s.Remove(0) // answered after Close
	if s.Deliver(3, func(int) { t.Error("the consumer is called after Close") }, nil) {
		t.Error("a closed set accepts a request")
	}
	if left := s.Close(); len(left) != 0 {
		t.Errorf("requests %v are pending after Close", left)
	}
	s.Wait()
}

func TestWaitForConsumer(t *testing.T) {
	var s rdmahost.Requests[int]
	entered, release := make(chan struct{}), make(chan struct{})
	s.Deliver(1, func(int) { close(entered); <-release }, nil)
	<-entered
	s.Close()
	done := make(chan struct{})
	go func() { s.Wait(); close(done) }()
	select {
	case <-done:
		t.Error("Wait returns during a call of the consumer")
	default:
	}
	close(release)
	<-done
}

// A request amid whose delivery the consumer panics is refused, once.
func TestConsumerPanics(t *testing.T) {
	var s rdmahost.Requests[int]
	refused := make(chan int, 2)
	before := contain.Count()
	for r := range 2 {
		if !s.Deliver(r, func(r int) {
			if r == 1 {
				panic("planted in the consumer")
			}
		}, func(r int) { refused <- r }) {
			t.Fatal("not delivered")
		}
	}
	s.Wait()
	close(refused)
	if r, ok := <-refused; !ok || r != 1 || contain.Count() != before+1 {
		t.Errorf("refused %d, %v", r, ok)
	}
	if _, ok := <-refused; ok {
		t.Error("more than one is refused")
	}
}
