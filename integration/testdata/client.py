"""An NBD client that stays connected: NBD commands on stdin, answers on stdout.

A command is a line: read OFFSET LENGTH | write OFFSET LENGTH | flush |
reads COUNT DEPTH | writes COUNT DEPTH (4 KiB each, in order, round the disk).
The answer is a line: ok or the errno.
"""
import sys

import nbd

h = nbd.NBD()
h.connect_uri(sys.argv[1])
size = h.get_size()
block = 4096
buffers = [nbd.Buffer.from_bytearray(bytearray(block)) for _ in range(128)]


def many(submit, count, depth):
    pending = []
    for i in range(count):
        pending.append(submit(buffers[i % depth], i * block % (size - block)))
        while len(pending) == depth:
            pending = [c for c in pending if not h.aio_command_completed(c)]
            if len(pending) == depth:
                h.poll(-1)
    while pending:
        pending = [c for c in pending if not h.aio_command_completed(c)]
        if pending:
            h.poll(-1)


commands = {
    "read": lambda offset, length: h.pread(length, offset),
    "write": lambda offset, length: h.pwrite(bytearray(length), offset),
    "flush": lambda: h.flush(),
    "reads": lambda count, depth: many(h.aio_pread, count, depth),
    "writes": lambda count, depth: many(h.aio_pwrite, count, depth),
}

print("ok", flush=True)
for line in sys.stdin:
    name, *numbers = line.split()
    try:
        commands[name](*map(int, numbers))
        print("ok", flush=True)
    except nbd.Error as e:
        print(e.errno or "closed", flush=True)
h.shutdown()
