# make build       the static binary, bin/viablk
# make test        every test, under the race detector
# make check       format, vet, staticcheck, modules, architecture
# make bench       every benchmark, and fio beside nbdkit
# make fuzz-smoke  every fuzz target for a moment
# make deps        what the tests and checks need beyond Go
SHELL := /bin/bash -o pipefail
GO ?= go
GOFUMPT := v0.12.0
STATICCHECK := v0.8.2
FUZZ_RUNS := 5000

# A command or file that is there when its Debian package is.
TOOLS := fio:fio nbdkit:nbdkit nbdinfo:libnbd-bin nbdcopy:libnbd-bin \
	nbdfuse:libnbd-bin qemu-img:qemu-utils qemu-io:qemu-utils \
	qemu-nbd:qemu-utils strace:strace mkfs.ext4:e2fsprogs losetup:util-linux \
	gcc:gcc /usr/include/stdlib.h:libc6-dev /usr/lib/python3/dist-packages/nbd.py:python3-libnbd

.PHONY: build test check bench fuzz-smoke deps clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/viablk ./cmd/viablk

# Allocations are counted without the race detector, which allocates itself.
test: deps
	CGO_ENABLED=1 VIABLK_WANT_RACE=1 $(GO) test -race -shuffle=on -count=1 ./...
	$(GO) test -list Alloc ./... | grep -c '^Test' >/dev/null # not -q, which would end the pipe early
	$(GO) test -shuffle=on -count=1 -run Alloc ./...

check: bin/gofumpt-$(GOFUMPT) bin/staticcheck-$(STATICCHECK)
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs bin/gofumpt-$(GOFUMPT) -l) && \
	if [ -n "$$unformatted" ]; then echo "gofumpt -l: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	bin/staticcheck-$(STATICCHECK) ./...
	$(GO) mod tidy -diff
	$(GO) test .

bench: deps
	$(GO) test -run '^$$' -bench . -benchmem ./...
	VIABLK_BENCH=1 $(GO) test -v -count=1 -timeout 30m -run TestCompareWithNbdkit ./integration

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

deps: bin/gofumpt-$(GOFUMPT) bin/staticcheck-$(STATICCHECK)
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

clean:
	rm -rf bin
