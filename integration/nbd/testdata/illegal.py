"""Send illegal requests over the connected handle h; print {case: errno}.

After each request a legal read must work on the same connection.
"""
import json

import nbd

size = h.get_size()
mib = 1 << 20
h.set_strict_mode(0)
# Requests must go to the server as they are.
if hasattr(h, "set_pread_initialize"):
    h.set_pread_initialize(True)

cases = {
    "read across the end": lambda: h.pread(1024, size - 512),
    "read at the end": lambda: h.pread(512, size),
    "read far behind": lambda: h.pread(512, size + (1 << 40)),
    "read at 2^63-512": lambda: h.pread(1024, (1 << 63) - 512),
    "read at 2^64-512": lambda: h.pread(1024, (1 << 64) - 512),
    "write across the end": lambda: h.pwrite(bytearray(1024), size - 512),
    "write at the end": lambda: h.pwrite(bytearray(512), size),
    "write at 2^64-512": lambda: h.pwrite(bytearray(1024), (1 << 64) - 512),
    "zero across the end": lambda: h.zero(1024, size - 512),
    "trim across the end": lambda: h.trim(1024, size - 512),
    "read nothing": lambda: h.pread(0, 0),
    "write nothing": lambda: h.pwrite(bytearray(0), 0),
    "zero nothing": lambda: h.zero(0, 0),
    "trim nothing": lambda: h.trim(0, 0),
    "read 64 MiB": lambda: h.pread(64 * mib, 0),
    "cache": lambda: h.cache(512, 0),
    "block status": lambda: h.block_status(512, 0, lambda *a: 0),
    "read with an unknown flag": lambda: h.pread(512, 0, flags=1 << 15),
    "write with an unknown flag": lambda: h.pwrite(bytearray(512), 0, flags=1 << 15),
    "flush with an unknown flag": lambda: h.flush(flags=1 << 15),
    "trim with NO_HOLE": lambda: h.trim(512, 0, flags=nbd.CMD_FLAG_NO_HOLE),
    "write with REQ_ONE": lambda: h.pwrite(bytearray(512), 0, flags=nbd.CMD_FLAG_REQ_ONE),
    "read odd bytes at odd place": lambda: h.pread(7, 4093),
    "write one byte": lambda: h.pwrite(b"x", 12345),
    "read with FUA": lambda: h.pread(512, 0, flags=nbd.CMD_FLAG_FUA),
    "flush with FUA": lambda: h.flush(flags=nbd.CMD_FLAG_FUA),
    "zero whole disk": lambda: h.zero(size, 0),
    "trim whole disk": lambda: h.trim(size, 0),
    "write the last byte": lambda: h.pwrite(b"y", size - 1),
}

answers = {}
for name, request in cases.items():
    try:
        request()
        answers[name] = ""
    except nbd.Error as e:
        answers[name] = e.errno or str(e)
    marker = name.encode().ljust(512, b".")
    h.pwrite(marker, mib)
    if h.pread(512, mib) != marker:
        answers[name] += ", and then the connection is out of step"
if h.pread(1, size - 1) != b"y":
    answers["write the last byte"] += ", and it is not there"
print(json.dumps(answers))
