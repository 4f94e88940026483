# make build       the static binary, bin/viablk
# make build-verbs the same with RDMA verbs: bin/viablk-verbs, which needs libibverbs and
#                  librdmacm at run time, and bin/viablk-verbs-static, which needs nothing
# make test        every test, under the race detector
# make test-vm     the tests in virtual machines with a real kernel
# make test-foreign  the suites of nbd, libnbd and QEMU against our NBD servers, and how many cases ran
# make conformance the conformance kit on every provider, and how many cases it ran
# make check       format, vet, staticcheck, modules, architecture
# make deb, rpm    packages viablk and viablk-verbs in dist
# make test-packages  the packages, installed and removed in roots of Debian
# make bench       every benchmark, VIA beside eventfds and copies, fio beside nbdkit,
#                  registration beside its targets
# make bench-nbd   fio on our NBD server and chain beside nbdkit and qemu-nbd, as a page in dist/bench-nbd
# make nbd-conformance  what the NBD protocol says, asked of our servers and of others, as a table
# make mutants     the tests of the registration cache against bugs planted in it
# make simulate    the transport and connection manager of RoCE, and the decision whether
#                  to copy, in virtual time
# make stress      ten million uses of the registration cache under the race detector
# make fuzz-smoke  every fuzz target for a moment
# make deps        what the tests and checks need beyond Go
SHELL := /bin/bash -o pipefail
GO ?= go
GOFUMPT := v0.12.0
STATICCHECK := v0.8.2
# From v2.46 on nfpm needs modules for formats that are not made here.
NFPM := v2.45.2
FUZZ_RUNS := 5000

# The tag of the tests in virtual machines; it adds files and takes none away.
VM := -tags vm

# The tag of the suites of other projects, likewise.
FOREIGN := -tags foreign

# The tag of the tests of packages, likewise.
PACKAGES := -tags packages

# The tag of the provider for RDMA devices, which needs cgo; it replaces one file.
VERBS := verbs

# A command or file that is there when its Debian package is.
TOOLS := fio:fio nbdkit:nbdkit nbdinfo:libnbd-bin nbdcopy:libnbd-bin \
	nbdfuse:libnbd-bin qemu-img:qemu-utils qemu-io:qemu-utils \
	qemu-nbd:qemu-utils nbd-server:nbd-server strace:strace mkfs.ext4:e2fsprogs losetup:util-linux \
	systemd-analyze:systemd ip:iproute2 tc:iproute2 nft:nftables iptables:iptables tshark:tshark \
	qemu-system-x86_64:qemu-system-x86 xz:xz-utils \
	gcc:gcc /usr/include/stdlib.h:libc6-dev /usr/include/infiniband/verbs.h:libibverbs-dev \
	/usr/include/rdma/rdma_cma.h:librdmacm-dev /usr/lib/python3/dist-packages/nbd.py:python3-libnbd

# The same for what builds and runs the suites of other projects.
FOREIGN_TOOLS := make:make g++:g++ pod2man:perl hexdump:bsdextrautils pkg-config:pkg-config \
	bison:bison flex:flex certtool:gnutls-bin jq:jq /usr/bin/python3-config:python3-dev \
	/usr/include/glib-2.0/glib.h:libglib2.0-dev \
	/usr/include/gnutls/gnutls.h:libgnutls28-dev /usr/include/libxml2/libxml/parser.h:libxml2-dev

# The same for what builds packages, and for what tests them.
BUILD_TOOLS := git:git gcc:gcc /usr/include/infiniband/verbs.h:libibverbs-dev /usr/include/rdma/rdma_cma.h:librdmacm-dev
PACKAGE_TOOLS := $(BUILD_TOOLS) mmdebstrap:mmdebstrap lintian:lintian rpm:rpm rpmlint:rpmlint \
	man:man-db mandoc:mandoc script:bsdutils zsh:zsh fish:fish \
	/usr/share/bash-completion/bash_completion:bash-completion

.PHONY: build build-verbs deb rpm test test-foreign test-packages test-vm conformance check bench bench-nbd nbd-conformance mutants stress simulate fuzz-smoke deps clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/viablk ./cmd/viablk

deb rpm: TOOLS := $(BUILD_TOOLS)
deb rpm: deps
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) contrib/package/build viablk $@
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) contrib/package/build viablk-verbs $@

# A static program has the drivers of devices in it. The library finds them by a macro.
build-verbs: deps
	CGO_ENABLED=1 $(GO) build -trimpath -tags $(VERBS) -o bin/viablk-verbs ./cmd/viablk
	CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -DRDMA_STATIC_PROVIDERS=rxe,mlx5,mlx4" \
	CGO_LDFLAGS="-Wl,--start-group -lrdmacm -libverbs -lrxe-rdmav34 -lmlx5 -lmlx4 -lnl-route-3 -lnl-3 -Wl,--end-group" \
		$(GO) build -trimpath -tags $(VERBS),netgo,osusergo -ldflags '-linkmode external -extldflags -static' \
		-o bin/viablk-verbs-static ./cmd/viablk

# Allocations are counted without the race detector, which allocates itself. A
# process under it sleeps a second at its end, unless told otherwise, in case a race
# is still to come: of tests, which wait for their goroutines, there is none.
test: deps
	CGO_ENABLED=1 VIABLK_WANT_RACE=1 GORACE=atexit_sleep_ms=50 $(GO) test -race -shuffle=on -count=1 -timeout 30m ./...
	CGO_ENABLED=1 $(GO) test -race -tags $(VERBS) -count=1 -run 'TestHost|TestTimeout' ./via/verbs # the others take a device
	$(GO) test -v -shuffle=on -count=1 -run Alloc ./... | \
		awk '/^=== RUN/ {n++} !/^(=== | *--- (PASS|SKIP)|PASS|-test.shuffle)/; END {exit n == 0}' # none is a failure
	$(MAKE) simulate

# One package at a time: a machine needs both processors of a small host.
test-vm: deps
	CGO_ENABLED=1 $(GO) test $(VM) -race -shuffle=on -count=1 -timeout 30m -p 1 ./integration/vm/...

test-packages: TOOLS += $(PACKAGE_TOOLS)
test-packages: deps
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) $(GO) test $(PACKAGES) -v -count=1 -timeout 15m ./integration/packages | \
		grep -vE '^ *(=== )'

# The servers are built with the race detector, as the tests are. Cases that do not
# apply are printed with their reasons.
test-foreign: TOOLS += $(FOREIGN_TOOLS)
test-foreign: deps
	CGO_ENABLED=1 $(GO) test $(FOREIGN) -race -v -count=1 -parallel 6 -timeout 20m ./integration/nbdsuite | \
		grep -vE '^ *(=== |--- PASS)'

# The providers' tests of the kit alone, which "go test" runs silently: a line for
# each, with the cases of each conformance level, and failures.
conformance:
	$(GO) test -v -count=1 -run '^TestConformance' ./via/shm ./via/roce ./via/viatest/loopback | \
		grep -E '^(viatest|panic:|FAIL| *--- FAIL)'

check: deps
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs bin/gofumpt-$(GOFUMPT) -l) && \
	if [ -n "$$unformatted" ]; then echo "gofumpt -l: $$unformatted"; exit 1; fi
	$(GO) vet $(VM),foreign,packages ./...
	bin/staticcheck-$(STATICCHECK) $(VM),foreign,packages ./...
	CGO_ENABLED=1 $(GO) vet $(VM),$(VERBS) ./via/verbs ./cmd/viablk ./integration/vm/interop
	CGO_ENABLED=1 bin/staticcheck-$(STATICCHECK) -tags $(VERBS) ./via/verbs
	$(GO) mod tidy -diff
	$(GO) test .

bench: deps build
	bin/viablk bench via
	$(GO) test -run '^$$' -bench . -benchmem ./...
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 60m -run 'TestCompareWithNbdkit|TestRegTargets' ./integration

bench-nbd: deps
	VIABLK_BENCH=1 VIABLK_BENCH_REPORT=$(CURDIR)/dist/bench-nbd $(GO) test -v -count=1 -timeout 120m -run TestCompareServers ./integration

nbd-conformance: deps
	VIABLK_CONFORMANCE=1 $(GO) test -v -count=1 -timeout 30m -run TestConformanceOfAll ./integration

mutants:
	$(GO) test -v -count=1 -timeout 30m -run TestMutants ./regcache -args -mutants

# More than two million messages; SEEDS=4000 is two hundred million. Without the race
# detector, which would see one goroutine.
SEEDS ?= 40
simulate:
	$(GO) test -v -count=1 -timeout 600m -run 'TestSimulation$$' ./via/roce/rc -args \
		-rc.seeds $(SEEDS) -rc.least $$(( $(SEEDS) * 50000 )) | grep -vE '^ *(=== |--- PASS)'
	$(GO) test -count=1 -run 'TestGoodputUnderLoss$$' ./via/roce/rc
	$(GO) test -count=1 -timeout 600m -run 'TestSimulation$$' ./via/roce/cm -args -cm.seeds $$(( $(SEEDS) * 20 ))
	$(GO) test -count=1 -run 'TestDecisionIsNearTheBest$$' ./regcache

stress:
	CGO_ENABLED=1 $(GO) test -race -v -count=1 -timeout 60m -run 'TestStress$$' ./regcache -args -stress-uses 10000000

# The targets are listed, not written down, so that a new one takes part. Runs are
# counted, not timed: go test calls it a failure when the time is over in the
# middle of minimising an input.
fuzz-smoke:
	@targets=$$($(GO) test -list '^Fuzz' ./... | awk \
		'/^Fuzz/ {name[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, name[i]; n = 0}') && \
	while read -r package name; do \
		echo "$$name in $$package" && \
		$(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZ_RUNS)x -fuzzminimizetime 1x "$$package" || exit 1; \
	done <<<"$$targets"

deps: bin/gofumpt-$(GOFUMPT) bin/staticcheck-$(STATICCHECK) bin/nfpm-$(NFPM)
	@missing=$$(for tool in $(TOOLS); do \
		command -v "$${tool%%:*}" >/dev/null || [ -e "$${tool%%:*}" ] || echo "$${tool#*:}"; \
	done | sort -u) && \
	if [ -n "$$missing" ]; then \
		export DEBIAN_FRONTEND=noninteractive && apt-get update -q && \
		apt-get install -q -y --no-install-recommends $$missing; \
	fi

bin/gofumpt-$(GOFUMPT):
	GOBIN=$(CURDIR)/bin $(GO) install mvdan.cc/gofumpt@$(GOFUMPT)
	mv bin/gofumpt $@

bin/staticcheck-$(STATICCHECK):
	GOBIN=$(CURDIR)/bin $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK)
	mv bin/staticcheck $@

bin/nfpm-$(NFPM):
	GOBIN=$(CURDIR)/bin $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM)
	mv bin/nfpm $@

clean:
	rm -rf bin dist
