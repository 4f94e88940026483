"""Try to change a read-only export over the handle h; print {request: errno}."""
import json

import nbd

h.set_strict_mode(0)
answers = {}
for name, request in {
    "write": lambda: h.pwrite(bytearray(512), 0),
    "zero": lambda: h.zero(512, 0),
    "trim": lambda: h.trim(512, 0),
    "flush": lambda: h.flush(),
    "read": lambda: h.pread(512, 0),
}.items():
    try:
        request()
        answers[name] = ""
    except nbd.Error as e:
        answers[name] = e.errno or str(e)
print(json.dumps(answers))
