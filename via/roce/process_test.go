package roce_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// hostVariable makes the test binary a process that accepts one connection at a
// host and sends back what it receives.
const hostVariable = "VIABLK_TEST_ROCE_ECHO"

func TestMain(m *testing.M) {
	if host := os.Getenv(askVariable); host != "" {
		if err := ask(host); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if host := os.Getenv(hostVariable); host != "" {
		if err := echo(host); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// echo is the other process. It ends with the connection.
func echo(host string) error {
	nic, err := via.OpenNic(roce.New(loaded), "")
	if err != nil {
		return err
	}
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	arena, err := nic.NewArena(1 << 20)
	if err != nil {
		return err
	}
	mem, err := nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: tag, EnableRdmaWrite: true})
	if err != nil {
		return err
	}
	cq, err := nic.CreateCQ(64)
	if err != nil {
		return err
	}
	vi, err := nic.CreateVi(via.ViAttributes{
		Reliability: via.ReliableDelivery, MaxTransferSize: 1 << 20, Ptag: tag, EnableRdmaWrite: true, EnableRdmaRead: true,
	}, via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	if err != nil {
		return err
	}
	recv, err := mem.NewDescriptor(0, 128)
	if err != nil {
		return err
	}
	send, err := mem.NewDescriptor(128, 128)
	if err != nil {
		return err
	}
	receive := func() error {
		recv.Reset(via.OpRecv)
		recv.AddSegment(mem.Addr()+4096, mem.Handle(), 100_000)
		return vi.PostRecv(recv)
	}
	if err := receive(); err != nil {
		return err
	}
	l, err := nic.Listen(via.Address{Host: host, Discriminator: "echo"})
	if err != nil {
		return err
	}
	fmt.Println("listening")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := l.Wait(ctx)
	if err != nil {
		return err
	}
	if err := r.Accept(ctx, vi); err != nil {
		return err
	}
	var batch [8]via.Completion
	for vi.State() == via.StateConnected {
		for _, c := range batch[:cq.Poll(batch[:])] {
			if !c.Recv || c.Status.Failed() {
				continue
			}
			send.Reset(via.OpSend)
			send.AddSegment(mem.Addr()+4096, mem.Handle(), c.Length)
			if err := receive(); err != nil {
				return err
			}
			if err := vi.PostSend(send); err != nil {
				return err
			}
		}
		sleep(cq, time.Second)
	}
	return nil
}

// spawn starts the other process and connects to it with options.
func spawn(t *testing.T, o roce.Options) (*party, *exec.Cmd) {
	t.Helper()
	return spawnAt(t, freePort(t, "127.0.0.1"), o)
}

// spawnAt is spawn at a host.
func spawnAt(t *testing.T, host string, o roce.Options) (*party, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), hostVariable+"="+host)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	x := newParty(t, roce.New(o), "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = x.vi.Connect(ctx, via.Address{Host: host, Discriminator: "echo"})
	check(t, err)
	return x, cmd
}

func TestTwoProcesses(t *testing.T) {
	x, cmd := spawn(t, loaded)
	for i, n := range []int{0, 1, 4096, 4097, 100_000} {
		src := x.payload(0, n)
		for j := range src {
			src[j] = byte(i + j*7)
		}
		check(t, x.vi.PostRecv(x.build(via.OpRecv, 200_000, n, nil)))
		check(t, x.vi.PostSend(x.build(via.OpSend, 0, n, nil)))
		done := 0
		within(t, "the echo", func() bool { done += x.poll(); return done == 2 })
		if string(x.payload(200_000, n)) != string(src) {
			t.Fatalf("the echo of %d bytes differs", n)
		}
	}
	x.close()
	check(t, cmd.Wait()) // it sees the disconnection
}

// A send to a peer whose process was killed fails with a transport error.
func TestPeerProcessKilled(t *testing.T) {
	x, cmd := spawn(t, brief)
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	check(t, x.vi.PostSend(x.build(via.OpSend, 0, 64, nil)))
	var status via.Status
	within(t, "the loss", func() bool {
		if x.cq.Poll(x.batch[:]) != 0 {
			status = x.batch[0].Status
		}
		return x.vi.State() == via.StateError
	})
	if status&via.StatusErrorMask != via.StatusTransportError {
		t.Errorf("the send completed with %v", status)
	}
	x.close()
}
