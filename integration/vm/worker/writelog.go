package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/vm/crashcheck"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// remote is a disk at a target, and the file with its write log.
type remote struct {
	host, export, path string
	blocks, workers    int
	seed               uint64
	durable            bool
	wait               time.Duration
}

func remoteFlags(flags *flag.FlagSet) *remote {
	r := &remote{}
	flags.StringVar(&r.host, "host", "", "where the target listens, `ADDRESS:PORT` of RoCE")
	flags.StringVar(&r.export, "export", "", "the disk")
	flags.StringVar(&r.path, "log", "", "`FILE` of the log, which is made if it is not there")
	flags.IntVar(&r.blocks, "blocks", 2048, "of a new write log")
	flags.IntVar(&r.workers, "workers", 8, "who write at a time")
	flags.BoolVar(&r.durable, "durable", false, "write with FUA only")
	flags.DurationVar(&r.wait, "wait", 0, "how long to wait for a target that is away")
	flags.Uint64Var(&r.seed, "seed", 1, "of what is done, and of the content of a new write log")
	return r
}

// progress says how many answers there were.
type progress struct {
	from int // of earlier loads

	mu   sync.Mutex
	said int
}

// answersPerLine is after how many answers a line says so: more than there are
// workers, each of whom may be late with one, so that no line is left out.
const answersPerLine = 16

func (p *progress) note(t crashcheck.Counters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := (t.Answers() - p.from) / answersPerLine * answersPerLine; n > p.said {
		p.said = n
		fmt.Printf("answered %d\n", n)
	}
}

// logWrite writes until the disk is lost or the program is told to end, and
// keeps the log in any case: what has no answer then has none.
func logWrite(flags *flag.FlagSet) func() error {
	r := remoteFlags(flags)
	return func() error {
		l, err := crashcheck.Open(r.path)
		if errors.Is(err, fs.ErrNotExist) {
			l, err = crashcheck.New(r.seed, r.blocks), nil
		}
		if err != nil {
			return err
		}
		disk, _, err := r.open()
		if err != nil {
			return err
		}
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		lost := make(chan error, 1)
		said := progress{from: l.Counters().Answers()}
		go func() {
			lost <- l.Load(disk, crashcheck.Load{
				Seed: r.seed, Workers: r.workers, Durable: r.durable, Stop: func() bool { return false }, Answered: said.note,
			})
		}()
		select {
		case <-end: // the load, which may be stuck, ends with the process
		case err := <-lost:
			fmt.Println("lost:", err)
		}
		fmt.Printf("%+v\n", l.Counters())
		return l.Save(r.path)
	}
}

// logCheck compares the disk with the log.
func logCheck(flags *flag.FlagSet) func() error {
	r := remoteFlags(flags)
	return func() error {
		l, err := crashcheck.Open(r.path)
		if err != nil {
			return err
		}
		disk, closeDisk, err := r.open()
		if err != nil {
			return err
		}
		found, err := l.Check(disk)
		fmt.Printf("%+v\n", found)
		return errors.Join(err, closeDisk(), l.Save(r.path))
	}
}

// open attaches the disk.
func (r *remote) open() (*block.Disk, func() error, error) {
	nic, err := via.OpenNic(roce.New(roce.Options{}), "")
	if err != nil {
		return nil, nil, err
	}
	nic.ErrorCallback(func(via.AsyncError) {}) // requests fail too
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	device, err := initiator.Dial(ctx, initiator.Config{NIC: nic, Host: r.host, Export: r.export, LossTimeout: r.wait})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("attach %s: %w", r.export, err), nic.Close())
	}
	disk, err := block.NewDisk(device)
	if err != nil {
		return nil, nil, errors.Join(err, device.Close(), nic.Close())
	}
	return disk, func() error { return errors.Join(disk.Close(), device.Close(), nic.Close()) }, nil
}
