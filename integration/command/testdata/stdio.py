"""Starts the server whose command is the argument, as JSON, with a socket as its
standard input and output, uses its disk, leaves, and says how the server ended
and what it sent that the client did not ask for."""
import json
import socket
import subprocess
import sys

import nbd

ours, theirs = socket.socketpair()
server = subprocess.Popen(json.loads(sys.argv[1]), stdin=theirs, stdout=theirs)
theirs.close()
h = nbd.NBD()
h.connect_socket(ours.dup().detach())
print("size", h.get_size())
h.pwrite(b"xyz", 700)
print("read", h.pread(3, 700).decode())
h.shutdown()
print("ended", server.wait(20))
ours.settimeout(20)
print("noise", ours.recv(100).decode())
