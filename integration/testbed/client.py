"""An NBD client that stays connected: NBD commands on stdin, answers on stdout.

A command is a line: read OFFSET LENGTH | write OFFSET LENGTH | flush |
fill OFFSET LENGTH BYTE | fua OFFSET LENGTH BYTE (the same, with FUA) |
check OFFSET LENGTH BYTE | readonly | force (send what the server refuses) |
reads COUNT DEPTH | writes COUNT DEPTH (4 KiB each, in order, round the disk).
The answer is a line: ok or the errno; of check also: other data, and of
readonly: True or False.
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


def check(offset, length, byte):
    if h.pread(length, offset) != bytes([byte]) * length:
        return "other data"


def fill(offset, length, byte, flags=0):
    h.pwrite(bytes([byte]) * length, offset, flags)


commands = {
    "read": lambda offset, length: check(offset, length, 0) and "ok",
    "write": lambda offset, length: fill(offset, length, 0),
    "flush": lambda: h.flush(),
    "fill": fill,
    "fua": lambda offset, length, byte: fill(offset, length, byte, nbd.CMD_FLAG_FUA),
    "check": check,
    "readonly": lambda: str(h.is_read_only()),
    "force": lambda: h.set_strict_mode(0),
    "reads": lambda count, depth: many(h.aio_pread, count, depth),
    "writes": lambda count, depth: many(h.aio_pwrite, count, depth),
}

print("ok", flush=True)
for line in sys.stdin:
    name, *numbers = line.split()
    try:
        print(commands[name](*map(int, numbers)) or "ok", flush=True)
    except nbd.Error as e:
        print(e.errno or "closed", flush=True)
h.shutdown()
