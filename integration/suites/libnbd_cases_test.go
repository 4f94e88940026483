//go:build suites

package suites

// Why cases of libnbd's suite do not apply.
const (
	noServer   = "it starts no server"
	script     = "its server is a script in nbdkit's plugins sh or eval"
	psk        = "it is about pre-shared keys, which are not spoken"
	oldstyle   = "it is about negotiations of old servers"
	oddSize    = "its disk is no multiple of 512 bytes"
	noDisk     = "its disk has no byte"
	qcow2      = "it is about images in qcow2"
	exportName = "it is about nbdkit's filter exportname"
	filter     = "it is about nbdkit's filter rate"
	device     = "it needs the kernel's NBD client"
	vsock      = "it needs AF_VSOCK, which integration/vm has"
	ssh        = "it needs nbdkit's plugin ssh and a server for it"
	daemon     = "it starts qemu-storage-daemon, which gets its disks by QMP"
	asNbdkit   = "it asks nbdkit for what it alone does: packets, statistics or debugging output of its own"
	asQemu     = "it asserts that QEMU tolerates a WRITE that the protocol forbids"
	asGuess    = "it is about guesses of image formats by qemu-nbd"
)

// libnbdReasons are the cases that do not apply, by their reasons.
var libnbdReasons = map[string][]string{
	noServer: {
		"copy/copy-allocated-destination-zero-asynch.sh",
		"copy/copy-allocated-destination-zero-synch.sh", "copy/copy-destination-zero-asynch.sh",
		"copy/copy-destination-zero-synch.sh", "copy/copy-file-to-file.sh", "copy/copy-file-to-null.sh",
		"copy/copy-progress-bar.sh", "copy/copy-stdin-to-null.sh", "copy/copy-zero-to-null.sh",
		"copy/test-long-options.sh", "copy/test-short-options.sh", "copy/test-version.sh",
		"dump/test-long-options.sh", "dump/test-short-options.sh", "dump/test-version.sh",
		"info/test-long-options.sh", "info/test-short-options.sh", "info/test-version.sh",
		"python/t/010-import.py", "python/t/100-handle.py", "python/t/105-with-handle.py",
		"python/t/110-defaults.py", "python/t/120-set-non-defaults.py", "python/t/140-explicit-close.py",
		"python/t/580-aio-is-zero.py", "python/t/585-aio-buffer-share.py", "python/t/610-exception.py",
		"sh/test-error.sh", "sh/test-help.sh", "sh/test-implicit-handle.sh", "sh/test-long-options.sh",
		"sh/test-short-options.sh", "sh/test-verbose.sh", "sh/test-version.sh", "tests/close-null",
		"tests/code-asserts.sh", "tests/code-bool.sh", "tests/code-errno.sh", "tests/code-inttypes.sh",
		"tests/code-stdint.sh", "tests/compile-c", "tests/compile-cxx", "tests/compile-header-only",
		"tests/compile-iso-c99", "tests/debug", "tests/debug-environment", "tests/dlopen",
		"tests/errors-bitmask", "tests/errors-connect-null", "tests/errors-enum",
		"tests/errors-name-too-long", "tests/errors-not-connected", "tests/errors-poll-no-fd",
		"tests/export-name", "tests/get-version", "tests/private-data",
	},
	script: {
		"copy/copy-flush.sh", "copy/copy-sparse-allocated.sh", "copy/copy-sparse.sh",
		"info/info-atomic-output.sh", "info/info-can.sh", "python/t/220-opt-list.py",
		"python/t/230-opt-info.py", "python/t/460-block-status.py", "python/t/465-block-status-64.py",
		"tests/can-cache-flag", "tests/can-df-flag", "tests/can-fast-zero-flag", "tests/can-flush-flag",
		"tests/can-fua-flag", "tests/can-multi-conn-flag", "tests/can-not-cache-flag",
		"tests/can-not-df-flag", "tests/can-not-fast-zero-flag", "tests/can-not-flush-flag",
		"tests/can-not-fua-flag", "tests/can-not-multi-conn-flag", "tests/can-not-trim-flag",
		"tests/can-not-zero-flag", "tests/can-trim-flag", "tests/can-zero-flag",
		"tests/errors-client-unadvertised-cmd", "tests/errors-multiple-disconnects",
		"tests/errors-server-oversize", "tests/errors-server-unadvertised-cmd",
		"tests/is-not-rotational-flag", "tests/is-rotational-flag", "tests/meta-base-allocation",
		"tests/opt-info", "tests/opt-list",
	},
	psk: {
		"copy/copy-tls.sh", "interop/interop-nbdkit-tls-psk",
		"interop/interop-nbdkit-tls-psk-allow-enabled", "interop/interop-qemu-nbd-tls-psk",
		"tests/aio-parallel-load-tls.sh", "tests/aio-parallel-tls.sh", "tests/connect-tls-psk",
		"tests/connect-uri-nbds-psk", "tests/connect-uri-nbds-unix-psk", "tests/opt-starttls",
		"tests/synch-parallel-tls.sh",
	},
	oldstyle: {
		"info/info-oldstyle.sh", "tests/newstyle-limited", "tests/oldstyle",
	},
	oddSize: {
		"copy/copy-file-to-nbd.sh", "copy/copy-nbd-to-sparse-file.sh", "info/info-list-uris.sh",
		"tests/get-size",
	},
	noDisk: {
		"info/info-map-base-allocation-zero.sh", "info/info-null.sh", "interop/list-exports-nbd-server",
		"interop/list-exports-nbdkit",
	},
	qcow2: {
		"copy/copy-file-to-qcow2.sh", "dump/dump-empty-qcow2.sh",
		"info/info-map-qemu-allocation-depth.sh", "info/info-map-qemu-dirty-bitmap.sh",
		"interop/block-status-64.sh", "interop/block-status-payload.sh", "interop/dirty-bitmap.sh",
		"interop/structured-read.sh",
	},
	exportName: {
		"info/info-description.sh", "info/info-list-json.sh", "info/info-list.sh",
	},
	filter: {
		"copy/copy-sparse-to-stream.sh",
	},
	device: {
		"copy/copy-block-to-nbd.sh", "copy/copy-nbd-to-block.sh",
		"copy/copy-nbd-to-small-block-error.sh",
	},
	vsock: {
		"tests/connect-uri-nbd-vsock.sh",
	},
	ssh: {
		"tests/connect-uri-nbd-ssh",
	},
	daemon: {
		"interop/interop-qemu-storage-daemon.sh",
	},
	asNbdkit: {
		"info/info-packets.sh", "python/t/620-stats.py", "tests/socket-activation-name",
	},
	asQemu: {
		"interop/strict-mode-auto-flag.sh",
	},
	asGuess: {
		"interop/interop-qemu-block-size.sh",
	},
}

// libnbdMixed are cases that start other servers beside viablk, and what these
// are there for.
var libnbdMixed = map[string]string{
	"copy/copy-file-to-qcow2-compressed.sh":  "--image-opts",
	"copy/copy-nbd-error.sh":                 "filter",
	"copy/copy-sparse-no-extents.sh":         "plugin eval",
	"copy/copy-sparse-request-size.sh":       "plugin eval",
	"dump/dump-data.sh":                      "no multiple of 512",
	"dump/dump-pattern.sh":                   "no multiple of 512",
	"dump/dump-subset.sh":                    "no multiple of 512",
	"info/info-can-zero.sh":                  "filter nozero",
	"info/info-cannot.sh":                    "option -o",
	"info/info-map-base-allocation-weird.sh": "plugin sh",
	"info/info-uri-quoting.sh":               "no multiple of 512",
	"sh/test-context.sh":                     "option --no-sr",
	"tests/opt-set-meta":                     "option --no-sr",
	"tests/shutdown-opt-mode":                "option --oldstyle",
}
