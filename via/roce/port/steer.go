package port

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// How the kernel deals packets out to lanes. The sockets of the lanes have the
// same address and are one SO_REUSEPORT group; which of them gets a packet is the
// index that a program computes from it, an index being the place in the order in
// which they were bound. That is LaneOf, in classic BPF, which needs no
// privilege. It sees the UDP payload, and a packet too short to name its queue
// pair goes to socket 0. An index beyond the group is replaced by a hash of the
// addresses.
//
// A socket that leaves the group would change the index of another one, so none
// is closed before all are.
//
// The first socket is bound without SO_REUSEPORT: so it fails if the address is
// taken, also by a group like this one. It sets the option then, and later ones
// may share the address with it, as might another process, but only one of the
// same user, with the option, and on purpose; it would have an index that no
// packet asks for.

// laneProgram computes LaneOf. Every instruction is {code, jump if true, jump
// if false, operand}.
var laneProgram = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetQP},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 1<<24 - 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: wire.GSI},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: Lanes - 1},
	{Code: unix.BPF_RET | unix.BPF_A},
}

// join adds a socket to the group of the lanes that are open, one at least.
func (p *udpPort) join() (fd int, err error) {
	first := p.lanes[0].fd
	if err := unix.SetsockoptInt(first, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return -1, fmt.Errorf("port %v: share the address: %w", p.local, err)
	}
	fd, err = p.socket(option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "share the address"})
	if err != nil || len(p.lanes) > 1 { // the group has its program
		return fd, err
	}
	program := unix.SockFprog{Len: uint16(len(laneProgram)), Filter: &laneProgram[0]}
	if err := unix.SetsockoptSockFprog(first, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program); err != nil {
		// The newest socket is the last of the group: no other index changes.
		return -1, errors.Join(fmt.Errorf("port %v: steer packets to lanes: %w", p.local, err), unix.Close(fd))
	}
	return fd, nil
}
