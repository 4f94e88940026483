package port

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// How the kernel steers packets to shards. The sockets of the shards have the
// same address and form one SO_REUSEPORT group. A program computes the index of
// the receiving socket, in the order of bind, from the UDP payload: ShardOf in
// classic BPF, which needs no privilege. A packet too short to name its queue
// pair goes to socket 0. For an index beyond the group the kernel uses a hash
// of the addresses.
//
// Closing a socket of the group would change the index of another one, so a
// port closes all sockets at once.
//
// The first socket is bound without SO_REUSEPORT, so that bind fails if the
// address is in use, also by such a group. Then it sets the option, and later
// sockets can share the address. Another process of the same user could join
// too, but the program steers no packet to its index.

// shardProgram computes ShardOf. Every instruction is {code, jump if true, jump
// if false, operand}.
var shardProgram = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetQP},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 1<<24 - 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: wire.GSI},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: Shards - 1},
	{Code: unix.BPF_RET | unix.BPF_A},
}

// join adds a socket to the group of the open shards, at least one.
func (p *udpPort) join() (fd int, err error) {
	first := p.shards[0].fd
	if err := unix.SetsockoptInt(first, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return -1, fmt.Errorf("port %v: share the address: %w", p.local, err)
	}
	fd, err = p.socket(option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "share the address"})
	if err != nil || len(p.shards) > 1 { // the group already has its program
		return fd, err
	}
	program := unix.SockFprog{Len: uint16(len(shardProgram)), Filter: &shardProgram[0]}
	if err := unix.SetsockoptSockFprog(first, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program); err != nil {
		// The newest socket is the last of the group: no other index changes.
		return -1, errors.Join(fmt.Errorf("port %v: steer packets to shards: %w", p.local, err), unix.Close(fd))
	}
	return fd, nil
}
