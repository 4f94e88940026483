"""Connect COUNT times to the URI, one client at once after the other; every
second one leaves in order. Print what failed."""
import collections
import sys

import nbd

failures = collections.Counter()
for i in range(int(sys.argv[2])):
    h = nbd.NBD()
    try:
        h.connect_uri(sys.argv[1])
        h.pread(512, 0)
        if i % 2:
            h.shutdown()
    except nbd.Error as e:
        failures[e.string] += 1
    del h
for text, count in failures.items():
    print(f"{count} times: {text}")
