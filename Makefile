# make build       the static binary, bin/viablk
# make build-verbs the same with RDMA verbs: bin/viablk-verbs, which needs libibverbs and
#                  librdmacm at run time, and bin/viablk-verbs-static, which needs nothing
# make build-rbd   the same with images of Ceph: bin/viablk-rbd, which needs librbd and librados at run time
# make test        every test, those of the product's packages under the race detector
# make test-plain  what runs in part under the race detector, in full and without it
# make test-race   every test, and all programs that they start, under the race detector
# make test-vm     the tests in virtual machines with a real kernel
# make test-vm-next  the same, all of them with the kernel of Debian's next release
# make test-suites  the suites of nbd, libnbd and QEMU against our NBD servers, and how many cases ran
# make test-page  a browser without a screen loads the page for people of a process under load
# make test-ceph   images of a real Ceph cluster on loopback, whose packages it installs
# make conformance the conformance kit on every provider, and how many cases it ran
# make check       format, vet, staticcheck, modules, architecture
# make deb, rpm    packages viablk, viablk-verbs and viablk-rbd in dist
# make test-packages  the packages, installed and removed in roots of Debian
# make bench       every benchmark, VIA beside eventfds and copies, fio beside nbdkit,
#                  registration beside its targets
# make bench-nbd   fio on our NBD server and chain beside nbdkit and qemu-nbd, as a page in dist/bench-nbd
# make bench-cost  what our NBD server and chain cost and do beside nbdkit, as a page in dist/bench-cost;
#                  COST="-cost.parts spread,rate -cost.rounds 1" chooses
# make bench-copy  viablk copy beside nbdcopy, between files and NBD servers
# make bench-proxy fio on a target in front of an NBD server, beside nbdkit's proxy
# make nbd-conformance  what the NBD protocol says, asked of our servers and of others, as a table
# make mutants     the tests of the registration cache against bugs planted in it
# make ablations   the decision whether to copy without each of its parts
# make simulate    the transport and connection manager of RoCE, and the decision whether
#                  to copy, and sessions with their disks, in virtual time
# make spoofed   a minute of requests for connections in the name of other addresses
# make hogs      an identity that takes all of 512 connections, and one that logs in ten
#                  thousand times
# make forged-packets  a hundred million packets without the right tag or checksum
# make planted     the simulation of sessions, and the table of rights, against bugs planted
#                  in them
# make stress      ten million uses of the registration cache under the race detector
# make exactly-once  millions of operations while processes are killed and the network is cut, and
#                  how many violations of their order there were
# make returns     ten thousand returns of a target whose clients leave meanwhile, and 200
#                  ends of NBD servers under QEMU
# make restarts    200 ends, under load, of each process below a mounted device in a virtual
#                  machine; VIABLK_VM_KERNEL=linux-image-6.12-amd64 is another kernel
# make attach-latency  p50 and p99 of 100 attaches, at a socket and as a device
# make takeovers   200 takeovers of a target under load, over shared memory and RoCE: no request takes longer
#                  than 100 ms in 99 of 100
# make scrapes     fio alone, beside a thousand clients that ask a target for its state, and beside as many
#                  that ask another one: medians of SCRAPES rounds
# make noticed     a silent peer is noticed within a second in a thousand cuts; requests wait 1.5 s at most
#                  in 200 cuts of one of two cables, 250 ms longer than a killed target is away, and
#                  for 1 MiB at 1 Mbit/s twice as long as the cable needs
# make cable-cuts  a thousand cuts of one of two cables: no request waits longer than 1.5 s, and none fails
# make late-packets  requests and data arrive ten seconds late, in HOLDS=200 fail-overs between two cables
#                  of PAIRS=10 pairs of hosts, and change nothing
# make crowds      the last of a hundred initiators goes on 1.5 s after its target is back; a hundred behind a
#                  cable of 1 Mbit/s need twice as long as it does, and lose no session
# make steady      an hour (TIME=60m) in which other processes keep all processors busy: no session and
#                  no connection may be lost
# make forgeries   a hundred million forged capsules, a million opens of a record that a peer
#                  changes meanwhile, sealed sessions whose messages change on the way, and
#                  bugs planted in what seals
# make rotation    a minute of requests under rekeys, and bugs planted in these
# make nonces      ten minutes (NONCES=10m) of restarts, rekeys and cut connections: no nonce twice under a key
# make cable       sealed sessions of two hosts with an attacker on their cable, also with bugs
#                  planted that leave payload in clear
# make fuzz-smoke  every fuzz target for a moment
# make deps        the Debian packages that the tests and checks need
SHELL := /bin/bash -o pipefail
# One configuration for all, that of the packages: with another one every package is
# compiled anew, which takes two processors more than a minute.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
export CGO_ENABLED ?= 0
GO ?= go
GOFUMPT := v0.12.0
STATICCHECK := v0.8.2
# From v2.46 on nfpm needs modules for formats that are not made here.
NFPM := v2.45.2
FUZZ_RUNS ?= 1000

# The tag of the tests in virtual machines; it adds files and takes none away.
VM := -tags vm

# The tag of the suites of other projects, likewise.
SUITES := -tags suites

# The tag of the tests of packages, likewise.
PACKAGES := -tags packages

# The tag of the test with a browser, likewise.
PAGE := -tags page

# The tag of the provider for RDMA devices, which needs cgo; it replaces one file.
VERBS := verbs

# The tag of images of Ceph, which needs cgo; it replaces one file. The tests that start
# a cluster have one of their own.
RBD := rbd
CEPH := $(RBD),ceph

# A command or file that is there when its Debian package is: of images of Ceph, of a
# cluster, and of all tests and checks.
RBD_TOOLS := /usr/include/rbd/librbd.h:librbd-dev /usr/include/rados/librados.h:librados-dev
CEPH_TOOLS := ceph-mon:ceph-mon ceph-osd:ceph-osd ceph:ceph-common rbd:ceph-common
TOOLS := git:git fio:fio nbdkit:nbdkit nbdinfo:libnbd-bin nbdcopy:libnbd-bin \
	nbdfuse:libnbd-bin qemu-img:qemu-utils qemu-io:qemu-utils \
	qemu-nbd:qemu-utils nbd-server:nbd-server strace:strace mkfs.ext4:e2fsprogs losetup:mount \
	mount:mount umount:mount kill:procps flock:util-linux curl:curl setpriv:util-linux prlimit:util-linux fsck.ext4:e2fsprogs python3:python3 \
	systemd-analyze:systemd ip:iproute2 tc:iproute2 nft:nftables iptables:iptables tshark:tshark \
	qemu-system-x86_64:qemu-system-x86 xz:xz-utils zstd:zstd cryptsetup:cryptsetup-bin promtool:prometheus tmux:tmux \
	gcc:gcc /usr/include/stdlib.h:libc6-dev /usr/include/infiniband/verbs.h:libibverbs-dev \
	/usr/include/rdma/rdma_cma.h:librdmacm-dev $(RBD_TOOLS) nbdsh:python3-libnbd /usr/lib/python3/dist-packages/nbd.py:python3-libnbd \
	/usr/lib/python3/dist-packages/jsonschema/__init__.py:python3-jsonschema /usr/lib/python3/dist-packages/yaml/__init__.py:python3-yaml

# The same for what builds and runs the suites of other projects.
SUITES_TOOLS := make:make g++:g++ pod2man:perl hexdump:bsdextrautils pkg-config:pkg-config \
	bison:bison flex:flex certtool:gnutls-bin jq:jq /usr/bin/python3-config:python3-dev \
	/usr/include/glib-2.0/glib.h:libglib2.0-dev \
	/usr/include/gnutls/gnutls.h:libgnutls28-dev /usr/include/libxml2/libxml/parser.h:libxml2-dev

# The same for what loads the page for people.
PAGE_TOOLS := chromium:chromium

# The same for what builds packages, and for what tests them.
BUILD_TOOLS := git:git gcc:gcc /usr/include/infiniband/verbs.h:libibverbs-dev /usr/include/rdma/rdma_cma.h:librdmacm-dev $(RBD_TOOLS)
PACKAGE_TOOLS := $(BUILD_TOOLS) mmdebstrap:mmdebstrap lintian:lintian rpm:rpm rpmlint:rpmlint \
	buildah:buildah man:man-db mandoc:mandoc script:bsdutils zsh:zsh fish:fish \
	/usr/share/bash-completion/bash_completion:bash-completion

# The lock annotations are those of product code: tests read fields of goroutines
# that have ended. Without inference an annotation is written down or there is none.
LOCKS := -test=false -inferred=false
LOCKED := ./internal/... ./via/... ./target/... ./initiator ./regcache ./config ./cmd/...

.PHONY: build build-verbs deb rpm image test test-plain test-race test-suites test-page test-packages test-vm test-vm-next conformance check bench bench-nbd bench-cost nbd-conformance mutants ablations stress simulate spoofed hogs forged-packets planted exactly-once returns noticed steady cable-cuts late-packets crowds restarts attach-latency takeovers scrapes forgeries rotation nonces cable fuzz-smoke deps clean bench-copy bench-proxy build-rbd test-ceph

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/viablk ./cmd/viablk

deb rpm: TOOLS := $(BUILD_TOOLS)
deb rpm: deps bin/nfpm-$(NFPM)
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) contrib/package/build viablk $@
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) contrib/package/build viablk-verbs $@
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) contrib/package/build viablk-rbd $@

image: TOOLS := git:git buildah:buildah
image: deps
	contrib/package/build viablk oci

# A static program has the drivers of devices in it. The library finds them by a macro.
build-verbs: TOOLS := $(BUILD_TOOLS)
build-verbs: deps
	CGO_ENABLED=1 $(GO) build -trimpath -tags $(VERBS) -o bin/viablk-verbs ./cmd/viablk
	CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -DRDMA_STATIC_PROVIDERS=rxe,mlx5,mlx4" \
	CGO_LDFLAGS="-Wl,--start-group -lrdmacm -libverbs -lrxe-rdmav34 -lmlx5 -lmlx4 -lnl-route-3 -lnl-3 -Wl,--end-group" \
		$(GO) build -trimpath -tags $(VERBS),netgo,osusergo -ldflags '-linkmode external -extldflags -static' \
		-o bin/viablk-verbs-static ./cmd/viablk

build-rbd: TOOLS := $(BUILD_TOOLS)
build-rbd: deps
	CGO_ENABLED=1 $(GO) build -trimpath -tags $(RBD) -o bin/viablk-rbd ./cmd/viablk

# Every test once: packages of the product under the race detector, the others, which
# start programs, without it, but for chains of programs that are built with it. -short
# cuts loops of one goroutine, in which it finds nothing, and what moves most bytes;
# "test-plain" has them in full.
# Allocations are counted without the race detector, which allocates itself.
# "make check" vets. Binaries are linked for packages with allocation tests alone.
# Tests wait for half of their time: twice as many packages as processors run at once,
# those that take longest first, and of those that start programs more tests each.
AT_ONCE ?= $(shell echo $$((2 * $$(nproc))))
TEST := $(GO) test -vet=off -shuffle=on -count=1 -timeout 30m
# A process under it sleeps a second at its end, unless told otherwise, in case a race
# is still to come: of tests, which wait for their goroutines, there is none.
RACE_TEST := CGO_ENABLED=1 VIABLK_WANT_RACE=1 GORACE=atexit_sleep_ms=50 $(TEST) -race
PROGRAMS := /integration/|/cmd/viablk(/internal/(bench|compare|regbench))?$$|viablk$$
RACE_SCRIPTS := admingroup|attach|clients|export|health|identity|limit|metrics|path|reload|reservation|sealed|session|top
RACE_CHAINS := TestExactlyOnce|TestExactlyOnceOverTwoCables|TestHistoryIsLinearizable|TestInitiatorsComeAndGo|TestTargetReturnsUnderLoad|TestTakeoverUnderLoad|TestManyConnections|TestRotation|TestReloadUnderLoad|TestShutdownWhileNegotiating
test: deps
	$(TEST) -p $(AT_ONCE) -parallel $$((3 * $$(nproc))) ./integration/{session,roce} ./cmd/viablk ./integration/nbd ./cmd/viablk/internal/{compare,bench} $$($(GO) list ./... | grep -E '$(PROGRAMS)')
	$(RACE_TEST) -short -p $(AT_ONCE) ./via/roce ./target/backend ./initiator ./internal/{nbd,nbdclient} ./target ./via/hook $$($(GO) list ./... | grep -vE '$(PROGRAMS)')
	$(RACE_TEST) -p $(AT_ONCE) -run '^($(RACE_CHAINS)|TestRaceDetectorIsOn)$$' . ./integration/{session,roce,nbd,attack}
	$(RACE_TEST) -run '^TestScript$$/^($(RACE_SCRIPTS))$$' ./cmd/viablk
	$(RACE_TEST) -tags $(VERBS) -run 'TestHost|TestTimeout' ./via/verbs # the others take a device
	$(TEST) -v -run Alloc $$(grep -rlE --include='*_test.go' 'func (Test|Fuzz)[A-Za-z0-9]*Alloc' . | xargs -n1 dirname | sort -u) | \
		awk '/^=== RUN/ {n++} !/^(=== | *--- (PASS|SKIP)|PASS|-test.shuffle)/; END {exit n == 0}' # none is a failure

# What is cut under the race detector, or left out, in full and without it.
test-plain:
	$(TEST) -run '^TestConformance(IPv4)?$$/././^GoneHandles$$' ./via/shm ./via/roce ./via/viatest/loopback $(SOME)
	$(TEST) -run '^TestConformanceThrough(Trace|Stats)$$' ./via/hook $(SOME)
	$(TEST) -run '^TestHistories|FullFileSystem$$|^TestFileSystemThatFillsUp$$|Los(es|e)Power$$|(Are|Is)Killed$$|^TestChecksumsAgainstModel$$' ./target/backend $(SOME)
	$(TEST) -run '^TestConformance(IPv6|Frames)$$' ./via/roce $(SOME)
	$(TEST) -run '^TestCopyModes$$' ./initiator $(SOME)
	$(TEST) -run '^TestChain$$' ./internal/loop $(SOME)
	$(TEST) -run '^(TestPolls|TestComparisons)' ./internal/spin $(SOME)
	$(TEST) -run '^Test($(KITS))$$/^([a-z?].*|Biggest)$$/^Biggest$$' ./target/{backend,backend/backendtest,limit} ./internal/{block,nbdclient} $(SOME)

# Tests that run the conformance kit of disks.
KITS := BlockDevice|Checksums|ChecksumsOfOneConnection|Delay|DirectFile|Engines|FaultThatNeverMatches|File|GoodDiskPasses|Kit|Map|Memory|Nbdkit|Null|Ours|Overlay|Qemu|ServedBackend|TLS|Volatile

# A package of which no test runs is a failure.
SOME := | awk '{print} /no tests to run/ {bad = 1}; END {exit bad}'

# Every test, in full, and every program under the race detector.
test-race: deps
	$(RACE_TEST) -p $(AT_ONCE) ./...

# "make test-vm SHORT=" and "make test-suites SHORT=" run what repeats cases: the kit at
# a level that an adapter does as another one, and a suite in both ways.
SHORT ?= -short

# One package at a time, in which as many machines as there are processors wait for a
# third of their time.
test-vm: deps
	CGO_ENABLED=1 $(GO) test $(VM) -race $(SHORT) -shuffle=on -count=1 -timeout 30m -p 1 ./integration/vm/...

test-vm-next:
	VIABLK_VM_KERNEL=linux-image-6.12-amd64 $(MAKE) test-vm

test-packages: TOOLS += $(PACKAGE_TOOLS)
test-packages: deps bin/nfpm-$(NFPM)
	NFPM=$(CURDIR)/bin/nfpm-$(NFPM) $(GO) test $(PACKAGES) -v -count=1 -timeout 30m ./integration/packages | \
		grep -vE '^ *(=== )'

# The browser takes 22 s to install.
test-page: TOOLS += $(PAGE_TOOLS)
test-page: deps
	$(GO) test $(PAGE) -v -count=1 -timeout 10m ./integration/page | grep -vE '^ *(=== )'

# The servers are built with the race detector, as the tests are. Cases that do not
# apply are printed with their reasons.
test-suites: TOOLS += $(SUITES_TOOLS)
test-suites: deps
	CGO_ENABLED=1 $(GO) test $(SUITES) -race $(SHORT) -v -count=1 -parallel 6 -timeout 30m ./integration/suites | \
		grep -vE '^ *(=== |--- PASS)'

test-ceph: TOOLS += $(CEPH_TOOLS)
test-ceph: deps
	CGO_ENABLED=1 $(GO) test -tags $(CEPH) -race -count=1 -timeout 20m ./integration/ceph

# The providers' tests of the kit alone, which "go test" runs silently: a line for
# each, with the cases of each conformance level, and failures.
conformance:
	$(GO) test -v -count=1 -run '^TestConformance' ./via/shm ./via/roce ./via/viatest/loopback | \
		grep -E '^(viatest|panic:|FAIL| *--- FAIL)'

# What reads the files of cgo packages: with -trimpath the cache names those of any
# clone of the repository.
RAW_CGO := GOFLAGS= CGO_ENABLED=1

check: deps bin/gofumpt-$(GOFUMPT) bin/staticcheck-$(STATICCHECK) bin/checklocks
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs bin/gofumpt-$(GOFUMPT) -l) && \
	if [ -n "$$unformatted" ]; then echo "gofumpt -l: $$unformatted"; exit 1; fi
	$(GO) vet $(VM),suites,packages,page ./...
	bin/staticcheck-$(STATICCHECK) $(VM),suites,packages,page ./...
	$(RAW_CGO) $(GO) vet $(VM),$(VERBS) ./via/verbs ./cmd/viablk ./integration/vm/interop
	$(RAW_CGO) bin/staticcheck-$(STATICCHECK) -tags $(VERBS) ./via/verbs
	$(RAW_CGO) $(GO) vet -tags $(CEPH) ./target/backend/rbd ./cmd/viablk ./integration/ceph
	$(RAW_CGO) bin/staticcheck-$(STATICCHECK) -tags $(CEPH) ./target/backend/rbd ./integration/ceph
	CGO_ENABLED=0 bin/checklocks $(LOCKS) $(LOCKED)
	$(RAW_CGO) bin/checklocks $(LOCKS) -tags $(RBD) ./target/backend/rbd
	@found=$$(cd contrib/checklocks && ../../bin/checklocks $(LOCKS) ./testdata/canary 2>&1); \
	case "$$found" in *"must be locked"*) ;; *) echo "checklocks passes a planted violation: $$found"; exit 1;; esac
	$(GO) mod tidy -diff
	$(GO) test .

bench: deps build
	bin/viablk bench via
	$(GO) test -run '^$$' -bench . -benchmem ./...
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 60m -p 1 -run 'TestCompareWithNbdkit|TestRegTargets' ./cmd/viablk/internal/{compare,regbench}

bench-nbd: deps
	VIABLK_BENCH=1 VIABLK_BENCH_REPORT=$(CURDIR)/dist/bench-nbd $(GO) test -v -count=1 -timeout 120m -run TestCompareServers ./cmd/viablk/internal/compare

bench-cost: deps
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 120m -run 'TestCost$$' ./cmd/viablk/internal/compare -args \
		-cost.report $(CURDIR)/dist/bench-cost $(COST)

bench-copy: deps
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 60m -run 'TestCompareCopies$$' ./cmd/viablk/internal/compare

bench-proxy: deps
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 60m -run 'TestCompareProxies$$' ./cmd/viablk/internal/compare

nbd-conformance: deps
	VIABLK_CONFORMANCE=1 $(GO) test -v -count=1 -timeout 30m -run TestConformanceOfAll ./integration/nbd

mutants:
	$(GO) test -v -count=1 -timeout 30m -run TestMutants ./regcache -args -mutants

ablations:
	$(GO) test -v -count=1 -timeout 30m -run TestAblations ./regcache -args -ablations

# More than two million messages, and seven million requests of sessions; SEEDS=4000 is
# a hundred times as many. Without the race detector, which would see one goroutine.
SEEDS ?= 40
simulate:
	$(GO) test -v -count=1 -timeout 600m -run 'TestSimulation$$' ./via/roce/rc -args \
		-rc.seeds $(SEEDS) -rc.least $$(( $(SEEDS) * 50000 )) | grep -vE '^ *(=== |--- PASS)'
	$(GO) test -count=1 -run 'TestGoodputUnderLoss$$' ./via/roce/rc
	$(GO) test -count=1 -timeout 600m -run 'TestSimulation$$' ./via/roce/cm -args -cm.seeds $$(( $(SEEDS) * 20 ))
	$(GO) test -count=1 -run 'TestDecisionIsNearTheBest$$' ./regcache
	$(GO) test -v -count=1 -timeout 1800m -run 'TestSimulation$$' ./integration/simulation -args \
		-sim.seeds $$(( $(SEEDS) * 200 )) | grep -vE '^ *(=== |--- PASS)'

spoofed:
	$(GO) test -v -count=1 -timeout 10m -run 'TestSpoofedRequests$$' ./integration/roce -args -spoof.time 60s

hogs:
	$(GO) test -v -count=1 -timeout 10m -run 'TestIdentityThat' ./integration/session -args -session.places 512 -session.logins 10000

FORGED ?= 100000000
forged-packets:
	$(GO) test -v -count=1 -timeout 60m -run 'TestWrongPackets$$' ./via/roce -args -roce.wrong $(FORGED)

planted:
	$(GO) test -v -count=1 -timeout 90m -run 'TestPlanted$$' ./integration/simulation -args -sim.planted | grep -vE '^ *=== '
	$(GO) test -v -count=1 -timeout 60m -run 'TestPlanted$$' ./integration/rights -args -rights.planted | grep -vE '^ *=== '

stress:
	CGO_ENABLED=1 $(GO) test -race -v -count=1 -timeout 60m -run 'TestStress$$' ./regcache -args -stress-uses 10000000

# On four disks: over shared memory and RoCE, in files and memory. Without the race
# detector, which "make test" has and which would leave fewer operations.
OPERATIONS ?= 10000000
KILLS ?= 2000
exactly-once: deps
	$(GO) test -v -count=1 -timeout 0 -p 1 -run '^TestExactlyOnce$$' ./integration/session ./integration/roce -args \
		-session.operations $$(( ($(OPERATIONS) + 3) / 4 )) -session.kills $$(( ($(KILLS) + 3) / 4 ))

RETURNS ?= 10000
returns:
	$(GO) test -v -count=1 -timeout 0 -run '^TestClientsLeaveAtReturns$$' ./integration/session -args -session.returns $(RETURNS)
	$(GO) test -v -count=1 -timeout 0 -run '^TestServerIsReplacedUnderQEMU$$' ./integration/nbd -args -nbd.restarts $$(( $(RETURNS) / 50 ))

RESTARTS ?= 200
restarts: deps
	$(GO) test $(VM) -v -count=1 -timeout 0 -run '^TestDevice$$/^restarts$$' ./integration/vm -args -restart.cycles $(RESTARTS)

# A loaded machine needs another limit.
TAKEOVERS ?= 200
TAKEOVERS_PAUSE ?= 100ms
takeovers: deps
	$(GO) test -v -count=1 -timeout 0 -run '^TestTakeoverUnderLoad$$' ./integration/session -args -takeovers $(TAKEOVERS) -takeovers.pause $(TAKEOVERS_PAUSE)

SCRAPES ?= 25
scrapes: deps
	$(GO) test -v -count=1 -timeout 60m -run '^$$' -bench '^BenchmarkScrapesBesideFio$$' -benchtime $(SCRAPES)x ./integration/nbd

attach-latency: deps
	$(GO) test $(VM) -v -count=1 -timeout 60m -run '^(TestDevice|TestAttachLatency)$$/^attach_latency$$' ./integration/vm -args \
		-attach.rounds 100

# What silence and restarts cost with default settings. A loaded machine needs
# other limits.
CUTS ?= 1000
NOTICED_CUT ?= 1s
NOTICED_STALL ?= 250ms
NOTICED_PATH ?= 1500ms
STALL_TARGETS ?= 25
noticed:
	$(GO) test -v -count=1 -timeout 0 -run '^TestSilentPeerIsNoticed$$' ./integration/roce -args -roce.cuts $(CUTS) -roce.cutsnotice $(NOTICED_CUT)
	$(MAKE) cable-cuts PATH_CUTS=$$(( $(CUTS) / 5 ))
	$(GO) test -v -count=1 -timeout 0 -parallel $$(( $(STALL_TARGETS) + 1 )) -run '^TestStallOfRestart$$' ./integration/session -args \
		-session.stalltargets $(STALL_TARGETS) -session.stalls $$(( ($(CUTS) + $(STALL_TARGETS) - 1) / $(STALL_TARGETS) )) -session.downtime 30s -session.excess $(NOTICED_STALL)
	$(GO) test -v -count=1 -timeout 0 -run '^TestLongTransferOverSlowCable$$' ./integration/roce -args \
		-roce.slowrate 1000000 -roce.slowkeepalive 250ms -roce.slowwithin 2

# A path that is lost again and again is held down for up to 30 s.
PATH_CUTS ?= 1000
PATH_BEDS ?= 20
cable-cuts:
	$(GO) test -v -count=1 -timeout 0 -parallel $$(( $(PATH_BEDS) + 1 )) -run '^TestCutOfOneCable$$' ./integration/roce \
		-args -roce.pathbeds $(PATH_BEDS) -roce.pathcuts $$(( $(PATH_CUTS) / 2 / $(PATH_BEDS) )) -roce.pathstall $(NOTICED_PATH)

HOLDS ?= 200
PAIRS ?= 10
late-packets:
	$(GO) test -v -count=1 -timeout 0 -parallel $$(( $(PAIRS) + 1 )) -run '^TestLatePackets$$' ./integration/roce -args \
		-roce.holdbeds $(PAIRS) -roce.holds $$(( ($(HOLDS) + $(PAIRS) - 1) / $(PAIRS) )) -roce.holdfor 10s -roce.holdpause 100ms

CROWD ?= 100
CROWD_STALL ?= 1500ms
crowds:
	$(GO) test -v -count=1 -timeout 0 -run '^TestCrowdReturns$$' ./integration/session -args \
		-session.crowd $(CROWD) -session.crowdrounds 10 -session.crowdstall $(CROWD_STALL)
	$(GO) test -v -count=1 -timeout 0 -run '^TestCrowdOverSlowCable$$' ./integration/roce -args -roce.crowd $(CROWD) -roce.crowdkeepalive 250ms -roce.crowdwithin 2

TIME ?= 60m
steady:
	$(GO) test -v -count=1 -timeout 0 -run '^TestNoFalseLosses$$' ./integration/session -args -session.steady $(TIME)

FORGERIES ?= 100000000
forgeries:
	$(GO) test -v -count=1 -timeout 0 -run '^(TestForgeries|TestPeerChangesMemoryAmid(Opens|Seals))$$' ./internal/seal -args \
		-seal.forgeries $(FORGERIES) -seal.opens $$(( $(FORGERIES) / 100 ))
	$(GO) test -v -count=1 -timeout 0 -run '^TestChangesOnTheWay$$' ./integration/attack -args \
		-attack.changes $$(( $(FORGERIES) / 50000 ))
	$(GO) test -v -count=1 -timeout 10m -run '^TestPlantedSeals$$' ./integration/attack -args -attack.planted

rotation:
	$(GO) test -v -count=1 -timeout 10m -run '^TestRotation$$' ./integration/attack -args -attack.rotation 60s -attack.rekey 1s
	$(GO) test -v -count=1 -timeout 10m -run '^TestPlantedRekeys$$' ./integration/attack -args -attack.planted

NONCES ?= 10m
nonces:
	$(GO) test -v -count=1 -timeout 0 -run '^TestNoncesOfSessions$$' ./integration/attack -args -attack.nonces $(NONCES)

cable: deps
	$(GO) test -v -count=1 -timeout 60m -run '^(TestFlipsOnCable|TestMessagesOnCable|TestSprayOnCable)$$' ./integration/attack -args \
		-attack.onway 100 -attack.sweeps 5
	$(GO) test -v -count=1 -timeout 60m -run '^TestPlanted$$' ./integration/attack -args -attack.planted

# The targets are listed, not written down, so that a new one takes part. Runs are
# counted, not timed: go test calls it a failure when the time is over in the
# middle of minimising an input.
fuzz-smoke:
	@targets=$$($(GO) test -vet=off -list '^Fuzz' $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u) | awk \
		'/^Fuzz/ {name[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, name[i]; n = 0}') && \
	while read -r package name; do \
		echo "$$name in $$package" && \
		$(GO) test -vet=off -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZ_RUNS)x -fuzzminimizetime 1x "$$package" || exit 1; \
	done <<<"$$targets"

# It comes first in every target, so that a user who cannot install packages
# learns it before anything is built. type -P finds files alone: the shell's own
# kill is not that of procps.
deps:
	@missing=$$(for tool in $(TOOLS); do \
		type -P "$${tool%%:*}" >/dev/null || [ -e "$${tool%%:*}" ] || echo "$${tool#*:}"; \
	done | sort -u) && \
	if [ -n "$$missing" ]; then \
		missing=$$(echo $$missing); goal="make $(or $(MAKECMDGOALS),deps)"; \
		if [ "$$(id -u)" != 0 ]; then \
			echo "$$goal: needs root: missing $$missing: run \"apt-get install $$missing\" as root, or $$goal as root" >&2; \
			exit 1; \
		fi; \
		export DEBIAN_FRONTEND=noninteractive && apt-get update -q && \
		apt-get install -q -y --no-install-recommends $$missing; \
	fi

# Its own module pins the analyzer, so that viablk does not depend on it.
bin/checklocks: contrib/checklocks/go.mod contrib/checklocks/main.go
	cd contrib/checklocks && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/bin/checklocks .

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
