//go:build vm

package vm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

var exerciseSeed = flag.Uint64("exercise.seed", 0, "seed of what is done to disks and file systems; 0 is another one each time")

// exerciseBed is a machine with a target of disks, and a seed.
type exerciseBed struct {
	*deviceBed
	seed uint64
}

// TestExercise has package exerciser at devices and at file systems on them,
// and counts what requests cost.
func TestExercise(t *testing.T) {
	t.Parallel()
	v := Boot(t, Config{
		Memory:  768,
		Limit:   21 * waitLimit, // of a host that is busy
		Modules: []string{"nbd nbds_max=4", "ext4", "xfs"},
		Tools: []string{
			"e2fsprogs/mkfs.ext4", "e2fsprogs/e2fsck", "xfsprogs/mkfs.xfs", "xfsprogs/xfs_repair", "fio/fio",
		},
		Files: map[string]string{
			"/usr/bin/viablk": Program(t, modulePath+"/cmd/viablk"),
			"/usr/bin/worker": Program(t, modulePath+"/integration/vm/worker"),
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*waitLimit)
	defer cancel()
	bed := &exerciseBed{&deviceBed{VM: v, ctx: ctx}, *exerciseSeed}
	if bed.seed == 0 {
		bed.seed = uint64(rand.Uint32())
	}
	t.Logf("replay with -exercise.seed %d", bed.seed)
	v.Must("sh", "-c", "cd /tmp && truncate -s 64M disk && truncate -s 8M small && truncate -s 320M large && mkdir -p /mnt")
	bed.startTarget(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"disk", bed.testDisk},
		{"ext4", func(t *testing.T) { bed.testFileSystem(t, "disk", "mkfs.ext4 -q", "e2fsck -fn") }},
		{"xfs", func(t *testing.T) { bed.testFileSystem(t, "large", "mkfs.xfs -q -f", "xfs_repair -n") }},
		{"processes replaced", bed.testReplaced},
		{"counters", bed.testCounters},
	} {
		if !t.Run(test.name, test.run) {
			break // it may have left its device
		}
	}
}

// exercise starts the program in a role.
func (b *exerciseBed) exercise(t *testing.T, role string, args ...any) *Command {
	t.Helper()
	command := append([]string{"worker", role, "-seed", fmt.Sprint(b.seed)}, strings.Fields(fmt.Sprintln(args...))...)
	c, err := b.Start(b.ctx, command...)
	must(t, err)
	return c
}

// succeeds waits for the end of a command, which is to be a good one.
func succeeds(t *testing.T, c *Command) {
	t.Helper()
	r := c.Wait()
	if !r.OK() {
		t.Fatal(r)
	}
	t.Log(strings.TrimSpace(r.Stdout))
}

// testDisk is a device in zones, with several connections.
func (b *exerciseBed) testDisk(t *testing.T) {
	c := b.attach(t, "disk", "--connections", "2")
	succeeds(t, b.exercise(t, "disk", "-path /dev/nbd0 -zones 3 -size 1048576 -operations 250"))
	b.detach(t, c)
}

// testFileSystem is a file and trees of files in a file system, at the same
// time, which is looked at again when it has been unmounted, repaired if need
// be, which is a failure, and mounted.
func (b *exerciseBed) testFileSystem(t *testing.T, disk, mkfs, fsck string) {
	c := b.attach(t, disk)
	b.script(t, mkfs+" /dev/nbd0 && mount /dev/nbd0 /mnt && mkdir /mnt/trees")
	const trees = "-folder /mnt/trees -workers 3 -operations 250"
	commands := []*Command{b.exercise(t, "trees", trees), b.exercise(t, "file", "-path /mnt/file -operations 500")}
	for _, c := range commands {
		succeeds(t, c)
	}
	b.script(t, "umount /mnt && "+fsck+" /dev/nbd0 2> /dev/null && mount /dev/nbd0 /mnt")
	succeeds(t, b.exercise(t, "trees-check", trees))
	b.script(t, "umount /mnt")
	b.detach(t, c)
}

// testReplaced kills the process of a device under load and has others take it
// over, at last while the target is killed too, and started again. Then the
// target alone is. The load waits, and sees no error.
func (b *exerciseBed) testReplaced(t *testing.T) {
	const trees = "-folder /mnt/trees -workers 3 -operations 1000"
	c := b.attach(t, "disk", "--io-timeout", "2s")
	b.script(t, "mkfs.ext4 -q -F /dev/nbd0 && mount /dev/nbd0 /mnt && mkdir /mnt/trees")
	load := b.exercise(t, "trees", trees)
	for round := range 4 {
		b.awaitRequests(t, 40)
		select {
		case <-load.ended:
			t.Fatalf("round %d: the load has ended: %v", round, load.Wait())
		default:
		}
		if round < 3 {
			must(t, c.Signal(syscall.SIGKILL))
			c.Wait()
		}
		if round >= 2 {
			must(t, b.target.Signal(syscall.SIGKILL))
			b.target.Wait()
			b.startTarget(t)
		}
		if round < 3 {
			c = b.attach(t, "disk", "--reattach", "--io-timeout", "2s")
		}
	}
	succeeds(t, load)
	b.script(t, "umount /mnt && e2fsck -fn /dev/nbd0 && mount /dev/nbd0 /mnt")
	succeeds(t, b.exercise(t, "trees-check", trees))
	b.script(t, "umount /mnt")
	b.detach(t, c)
}
