package backend

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// scrubSize is three regions, and a block that is no whole one.
const scrubSize = 9<<20 + 512

// scrubAll scrubs a disk to its end.
func scrubAll(t testing.TB, d block.Device) ScrubStatus {
	t.Helper()
	if err := StartScrub(d, ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	<-checked(d).scrubs.latestScrub().done
	status, ok := ScrubOf(d)
	if !ok || status.State != ScrubFinished || status.Offset != d.Info().Size || status.Ended.Before(status.Started) {
		t.Fatalf("the scrub ended as %+v, %v", status, ok)
	}
	return status
}

// latestScrub returns the latest scrub, which may have ended.
func (x *scrubs) latestScrub() *scrub {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.latest
}

// wantPlaces wants a scrub to have found these blocks and no others.
func wantPlaces(t testing.TB, status ScrubStatus, want ...int64) {
	t.Helper()
	if !slices.Equal(status.CorruptAt, want) || status.Corrupt != uint64(len(want)) || status.Unreadable != 0 || status.Unchecked != 0 {
		t.Errorf("the scrub found %d corrupt blocks at %d, %d unreadable ones and %d regions; want %d", status.Corrupt, status.CorruptAt, status.Unreadable, status.Unchecked, want)
	}
}

// Bits flip in blocks beneath the disk, at the borders of pieces, regions and
// the disk: a scrub reports these and no others, whether their sums are in
// memory or in the file, and not what has no sum. It leaves in memory what was
// there.
func TestScrub(t *testing.T) {
	planted := []int64{0, 4096 * 7, scrubPiece - 4096, scrubPiece, checksum.RegionSize - 4096, checksum.RegionSize, 2*checksum.RegionSize + 8192, 9 << 20}
	const trimmed = 3 << 20
	for _, options := range []string{"?io=threads", "?io=uring&direct=1"} {
		if options != "?io=threads" {
			planted = planted[:len(planted)-1] // 512 bytes are less than a block of some file systems
		}
		b := newSumsBed(t, scrubSize)
		d := mustOpen(t, b.spec(options), Options{}).(*crc)
		disk := viewOf(t, d)
		wantPlaces(t, scrubAll(t, d)) // without any sum
		if _, err := disk.WriteAt(fill(scrubSize, 3), 0); err != nil {
			t.Fatal(err)
		}
		if err := disk.Trim(trimmed, 64<<10); err != nil {
			t.Fatal(err)
		}
		flip(t, b.path, trimmed+4096)
		for _, off := range planted {
			flip(t, b.path, off+100)
		}
		status := scrubAll(t, newWrapper(d, wrapperRules{}))
		wantPlaces(t, status, planted...)
		if want := int64(scrubSize - 64<<10); status.Checked != want || status.Last.Corrupt != uint64(len(planted)) {
			t.Errorf("%d bytes are checked instead of %d, and %+v is kept", status.Checked, want, status.Last)
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		b.close(d)

		again := mustOpen(t, b.spec(options), Options{}).(*crc)
		if status, _ := ScrubOf(again); status.State != ScrubNone || status.Last.Corrupt != uint64(len(planted)) || time.Since(status.Last.Ended) > time.Hour {
			t.Errorf("after another opening: %+v", status)
		}
		again.load(1, 1)
		wantPlaces(t, scrubAll(t, again), planted...)
		for i := range again.count() {
			if inMemory := again.regions.at(i).sums.Load() != nil; inMemory != (i == 1) {
				t.Errorf("the sums of region %d are in memory: %v", i, inMemory)
			}
		}
		for _, off := range planted { // whole blocks repair
			if _, err := viewOf(t, again).WriteAt(fill(int(again.blockAt(off)), 9), off); err != nil {
				t.Fatal(err)
			}
		}
		wantPlaces(t, scrubAll(t, again))
	}
}

// Clients write to the regions that scrubs read, whole blocks and parts of
// them, and trim: each scrub reports the planted blocks, and no other.
func TestScrubBesideWriters(t *testing.T) {
	planted := []int64{4096 * 5, checksum.RegionSize - 8192, checksum.RegionSize + 4096*300, 9<<20 - 4096}
	for _, options := range []string{"?io=threads", "?io=uring"} {
		t.Run(options, func(t *testing.T) {
			b := newSumsBed(t, scrubSize)
			d := mustOpen(t, b.spec(options), Options{}).(*crc)
			disk := viewOf(t, d)
			d.idle = 0
			if _, err := disk.WriteAt(fill(scrubSize, 3), 0); err != nil {
				t.Fatal(err)
			}
			for _, off := range planted {
				flip(t, b.path, off)
			}
			ended := make(chan struct{})
			var writers sync.WaitGroup
			for seed := range uint64(3) {
				writers.Go(func() { writeBeside(t, disk, rand.New(rand.NewPCG(seed, 9)), planted, ended) })
			}
			for range 12 {
				wantPlaces(t, scrubAll(t, d), planted...)
			}
			close(ended)
			writers.Wait()
		})
	}
}

// writeBeside changes blocks other than the planted ones.
func writeBeside(t *testing.T, disk *block.Disk, random *rand.Rand, planted []int64, ended <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		default:
		}
		off, n := random.Int64N(scrubSize/512)*512, 512*(1+random.Int64N(128))
		if random.IntN(2) == 0 {
			off, n = off&^4095, n&^4095+4096
		}
		n = min(n, scrubSize-off)
		if slices.ContainsFunc(planted, func(at int64) bool { return off < at+4096 && at < off+n }) {
			continue
		}
		var err error
		switch {
		case i%64 == 63:
			err = disk.Sync()
		case i%16 == 15:
			err = disk.Trim(off, n)
		default:
			_, err = disk.WriteAt(fill(int(n), byte(random.Uint32())), off)
		}
		if err != nil {
			t.Errorf("%d bytes at %d: %v", n, off, err)
			return
		}
	}
}

// A scrub is the first request of a region that an unclean end left marked: it
// raises no alarm there, and the sums of the region hold from then on. A disk
// that is read-only has none there.
func TestScrubOfMarkedRegions(t *testing.T) {
	b := usedSums(t, scrubSize)
	d := b.open()
	disk := viewOf(t, d)
	if _, err := disk.WriteAt(fill(4096, 5), 4096); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	killSums(t, d)
	corruptClosed(t, b.path, 8192)
	corruptClosed(t, b.path, 9<<20)
	readOnly := mustOpen(t, b.spec(""), Options{ReadOnly: true})
	// All three regions are marked together.
	if status := scrubAll(t, readOnly); status.Checked != 0 || status.Corrupt != 0 || status.Unchecked != 3 || status.Clean() {
		t.Errorf("sums of no use: got %+v", status)
	}
	b.close(readOnly)
	if again := b.open(); again.header.Scrubbed != 0 {
		t.Error("a disk that is read-only has kept a scrub")
	} else {
		defer b.close(again)
		wantPlaces(t, scrubAll(t, again))
		if again.regions.at(0).stale.Load() || again.regions.at(0).sums.Load() == nil {
			t.Error("the region has no sums after a scrub")
		}
		flip(t, b.path, 4096*9)
		wantPlaces(t, scrubAll(t, again), 4096*9)
	}
}

// A client is the first to use a region amid its scrub, whose sums it then
// changes: the scrub compares with those.
func TestScrubOfRegionLoadedMeanwhile(t *testing.T) {
	b := usedSums(t, scrubSize)
	d := b.open()
	disk := viewOf(t, d)
	v := &virtualClock{disk: d}
	v.use()
	sleep, written := d.scrubs.sleep, false
	d.scrubs.sleep = func(pause time.Duration, stop, until <-chan struct{}) {
		if status, _ := ScrubOf(d); status.Checked > 0 && !written {
			written = true
			if d.regions.at(0).sums.Load() != nil {
				t.Error("the region is in memory")
			}
			if _, err := disk.WriteAt(fill(4096, 7), 2*scrubPiece); err != nil {
				t.Error(err)
			}
		}
		sleep(pause, stop, until)
	}
	if err := StartScrub(d, ScrubOptions{Rate: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	<-d.scrubs.latestScrub().done
	status, _ := ScrubOf(d)
	if wantPlaces(t, status); !written || status.State != ScrubFinished {
		t.Errorf("got %+v", status)
	}
}

// unreadable is a kernel that cannot read some blocks of a file.
type unreadable struct {
	syncFailing
	blocks []int64
}

func (u *unreadable) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	end := off + int64(len(p))
	if u.is(fd) && slices.ContainsFunc(u.blocks, func(at int64) bool { return off < at+4096 && at < end }) {
		return 0, unix.EIO
	}
	return u.linux.pread(fd, p, off, noWait)
}

// Blocks that the disk fails to read are counted apart from corrupt ones, which
// are found beside them; those without sums are neither.
func TestScrubOfUnreadableBlocks(t *testing.T) {
	b := usedSums(t, scrubSize)
	corruptClosed(t, b.path, 12288)
	bad := []int64{8192, scrubPiece, 9 << 20}
	const unsummed = 64 << 10
	d := b.openOn(&unreadable{syncFailing{path: b.path}, append([]int64{unsummed}, bad...)})
	disk := viewOf(t, d)
	if err := disk.Trim(unsummed, 4096); err != nil {
		t.Fatal(err)
	}
	status := scrubAll(t, d)
	if !slices.Equal(status.UnreadableAt, bad) || status.Unreadable != 3 || !slices.Equal(status.CorruptAt, []int64{12288}) {
		t.Errorf("got %+v", status)
	}
	if want := int64(scrubSize - 4096*3 - 512); status.Checked != want || status.Last.Unreadable != 3 || status.Clean() {
		t.Errorf("%d bytes are checked instead of %d: %+v", status.Checked, want, status)
	}
}

// stalling is a kernel that stops at long reads of a file.
type stalling struct {
	syncFailing
	entered, leave chan struct{}
}

func (s *stalling) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	if len(p) == scrubPiece && s.is(fd) && !noWait {
		s.entered <- struct{}{}
		<-s.leave
	}
	return s.linux.pread(fd, p, off, noWait)
}

// A client that writes beside the piece that a scrub reads does not wait for
// it, also in a region that no request has loaded.
func TestScrubHoldsOnePiece(t *testing.T) {
	b := usedSums(t, scrubSize)
	k := &stalling{syncFailing{path: b.path}, make(chan struct{}), make(chan struct{})}
	d := b.openOn(k)
	disk := viewOf(t, d)
	if err := StartScrub(d, ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	<-k.entered
	for _, off := range []int64{scrubPiece, 2*scrubPiece + 100, checksum.RegionSize} {
		if _, err := disk.WriteAt(fill(4096, 4), off); err != nil {
			t.Error(err)
		}
	}
	inside := make(chan error, 1)
	go func() {
		_, err := disk.WriteAt(fill(4096, 4), scrubPiece-4096)
		inside <- err
	}()
	stopping, err := StopScrub(d)
	if err != nil {
		t.Fatal(err)
	}
	if len(inside) > 0 {
		t.Error("a write of the piece does not wait")
	}
	k.leave <- struct{}{}
	if err := <-inside; err != nil {
		t.Error(err)
	}
	<-stopping
	status, _ := ScrubOf(d)
	wantPlaces(t, status)
}

// The places of many corrupt blocks are bounded, and their number is not.
func TestScrubBoundsPlaces(t *testing.T) {
	b := usedSums(t, 1<<20)
	for off := int64(0); off < 1<<20; off += 4096 {
		corruptClosed(t, b.path, off)
	}
	d := b.open()
	defer b.close(d)
	if status := scrubAll(t, d); status.Corrupt != 256 || len(status.CorruptAt) != maximumPlaces || status.CorruptAt[99] != 99*4096 {
		t.Errorf("got %+v", status)
	}
}

// A page of sums that is damaged leaves its region unchecked, and others not.
func TestScrubOfDamagedSums(t *testing.T) {
	b := usedSums(t, scrubSize)
	flip(t, b.sums, checksum.SumsAt(1)+100)
	corruptClosed(t, b.path, checksum.RegionSize)
	corruptClosed(t, b.path, 2*checksum.RegionSize)
	d := b.open()
	defer b.close(d)
	for range 2 {
		if status := scrubAll(t, d); status.Unchecked != 1 || !slices.Equal(status.CorruptAt, []int64{2 * checksum.RegionSize}) {
			t.Errorf("got %+v", status)
		}
		readSome(t, d)
	}
	disk := viewOf(t, d)
	if _, err := disk.WriteAt(fill(4096, 3), checksum.RegionSize); err != nil {
		t.Fatal(err)
	}
	if err := disk.Sync(); err != nil { // the page is stored anew
		t.Fatal(err)
	}
	if status := scrubAll(t, d); status.Unchecked != 0 {
		t.Errorf("got %+v", status)
	}
}

// taken is a kernel that does not read a file, which another process has.
type taken struct{ syncFailing }

func (k *taken) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	if k.is(fd) {
		return -1, unix.ESHUTDOWN
	}
	return k.linux.pread(fd, p, off, noWait)
}

// A scrub of a disk that another process took over fails, and is no result.
func TestScrubOfTakenDisk(t *testing.T) {
	b := usedSums(t, scrubSize)
	d := b.openOn(&taken{syncFailing{path: b.path}})
	defer b.close(d)
	if err := StartScrub(d, ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	<-checked(d).scrubs.latestScrub().done
	if status, _ := ScrubOf(d); status.State != ScrubFailed || status.Unreadable != 0 || !status.Last.Ended.IsZero() {
		t.Errorf("got %+v", status)
	}
}

// readSome reads a block of the second region, whose sums stay in memory then.
func readSome(t *testing.T, d block.Device) {
	t.Helper()
	disk, err := block.NewDisk(d)
	if err == nil {
		_, err = disk.ReadAt(make([]byte, 4096), checksum.RegionSize)
		err = errors.Join(err, disk.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// virtualClock is a clock that only sleeps move.
type virtualClock struct {
	disk   *crc
	now    time.Duration
	sleeps int
	held   bool    // a range was, amid a sleep
	most   float64 // bytes checked beyond those of the rate, at the end of a sleep
	rate   float64
}

func (v *virtualClock) use() {
	v.disk.scrubs.clock = func() time.Duration { return v.now }
	v.disk.scrubs.sleep = func(d time.Duration, _, _ <-chan struct{}) {
		v.sleeps++
		status, _ := ScrubOf(v.disk)
		v.most = max(v.most, float64(status.Checked)-v.rate*v.now.Seconds())
		v.now += d
		if !v.disk.ranges.TryAcquire(0, v.disk.info.Size, true) {
			v.held = true
			return
		}
		v.disk.ranges.Release(0, v.disk.info.Size, true)
	}
}

// A scrub keeps its rate, of which it is never more than a piece ahead, and
// holds no range while it sleeps.
func TestScrubKeepsItsRate(t *testing.T) {
	const rate = 3 << 20
	b := usedSums(t, scrubSize)
	d := b.open()
	defer b.close(d)
	v := &virtualClock{disk: d, rate: rate}
	v.use()
	if err := StartScrub(d, ScrubOptions{Rate: rate}); err != nil {
		t.Fatal(err)
	}
	<-d.scrubs.latestScrub().done
	status, _ := ScrubOf(d)
	if v.most > scrubPiece+1 || v.sleeps < scrubSize/scrubPiece-1 || v.held {
		t.Errorf("%v bytes ahead of the rate, %d sleeps, held a range: %v", v.most, v.sleeps, v.held)
	}
	if least := time.Second * (scrubSize - scrubPiece) / rate; v.now < least || v.now > 2*least || status.Speed > rate*5/4 {
		t.Errorf("%v instead of %v, at %d bytes/s", v.now, least, status.Speed)
	}
}

// slowScrub starts a scrub that sleeps for days behind its first piece.
func slowScrub(t *testing.T, d block.Device, until <-chan struct{}) {
	t.Helper()
	if err := StartScrub(d, ScrubOptions{Rate: 1, Until: until}); err != nil {
		t.Fatal(err)
	}
	for { // it has read the first piece
		if status, _ := ScrubOf(d); status.Checked > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stopScrub stops the scrub of a disk, if one runs.
func stopScrub(t *testing.T, d block.Device) {
	t.Helper()
	ended, err := StopScrub(d)
	if err != nil {
		t.Fatal(err)
	}
	<-ended
}

// A scrub runs once at a time, and stops by StopScrub, by the end of its
// channel, and by Close, which waits for it. None of these counts as one of the
// whole disk.
func TestStoppedScrub(t *testing.T) {
	b := usedSums(t, scrubSize)
	var log bytes.Buffer
	d := mustOpen(t, b.spec(""), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	want := func(state ScrubState) {
		t.Helper()
		if status, _ := ScrubOf(d); status.State != state || status.Checked != scrubPiece || !status.Last.Ended.IsZero() {
			t.Errorf("the scrub is %+v, not %s", status, state)
		}
	}
	stopScrub(t, d) // none runs
	slowScrub(t, d, nil)
	want(ScrubRunning)
	if err := StartScrub(d, ScrubOptions{}); !errors.Is(err, ErrScrubbing) {
		t.Errorf("a second scrub: %v", err)
	}
	for range 2 {
		stopScrub(t, d)
		want(ScrubStopped)
	}
	until := make(chan struct{})
	slowScrub(t, d, until)
	close(until)
	<-checked(d).scrubs.latestScrub().done
	want(ScrubStopped)
	slowScrub(t, d, nil)
	b.close(d)
	want(ScrubStopped)
	if err := StartScrub(d, ScrubOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a scrub of a closed disk: %v", err)
	}
	if n := strings.Count(log.String(), "event=scrub_started rate=1"); n != 3 || strings.Count(log.String(), "event=scrub_ended state=stopped bytes_checked=1048576") != 3 {
		t.Errorf("the log says: %s", log.String())
	}
}

// A request that does not end keeps a scrub waiting for its range, and when it
// ends the scrub stops.
func TestScrubBehindARequest(t *testing.T) {
	b := usedSums(t, scrubSize)
	d := b.open()
	defer b.close(d)
	if !d.ranges.TryAcquire(4096, 4096, true) {
		t.Fatal("the range is not free")
	}
	if err := StartScrub(d, ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	ended, err := StopScrub(d)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		t.Error("the scrub does not wait for the range")
	default:
	}
	d.ranges.Release(4096, 4096, true)
	<-ended
	if status, _ := ScrubOf(d); status.State != ScrubStopped || status.Checked > scrubPiece {
		t.Errorf("got %+v", status)
	}
}

// A panic ends a scrub, and neither the process nor the disk.
func TestScrubPanics(t *testing.T) {
	b := usedSums(t, scrubSize)
	d := b.open()
	defer b.close(d)
	d.scrubs.sleep = func(time.Duration, <-chan struct{}, <-chan struct{}) { panic("planted") }
	if err := StartScrub(d, ScrubOptions{Rate: 1}); err != nil {
		t.Fatal(err)
	}
	<-d.scrubs.latestScrub().done
	if status, _ := ScrubOf(d); status.State != ScrubFailed || status.Error != "panic: planted" || !status.Last.Ended.IsZero() {
		t.Errorf("got %+v", status)
	}
	wantPlaces(t, scrubAll(t, d))
}

// A disk without checksums has no scrubs, and one whose file of them cannot be
// written says so.
func TestScrubIsRefused(t *testing.T) {
	plain := mustOpen(t, "memory:1M", Options{})
	defer plain.Close()
	if err := StartScrub(plain, ScrubOptions{}); !errors.Is(err, ErrNoChecksums) {
		t.Errorf("started with %v", err)
	}
	if _, err := StopScrub(plain); !errors.Is(err, ErrNoChecksums) {
		t.Errorf("stopped with %v", err)
	}
	if _, ok := ScrubOf(plain); ok {
		t.Error("it has a state")
	}
	b := usedSums(t, 1<<20)
	k := &syncFailing{path: b.sums}
	d := b.openOn(k)
	k.failing.Store(true)
	if status := scrubAll(t, d); !strings.Contains(status.Error, "keep the scrub in checksums") || status.Last.Ended.IsZero() {
		t.Errorf("got %+v", status)
	}
	if err := d.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("closed with %v", err)
	}
}
