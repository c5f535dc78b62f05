# Strata's build. Go, git and make are enough for build, run and test; what ci
# needs beyond them is installed by .ci/run.

GO ?= go

# Everything that is shipped is pure Go. Only the race detector overrides this.
export CGO_ENABLED := 0

# The version that "strata version" prints: the nearest tag or commit, and
# "unknown" where there is no git or no repository.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# -buildvcs=false: the version comes from above, and Go's own stamping fails in a
# repository that belongs to another user.
BUILD = $(GO) build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'

# "./..." leaves out folders named testdata; ours holds a package.
PACKAGES = ./... ./testdata

.DEFAULT_GOAL := help
.PHONY: help build run test generate ci clean

help: ## list what can be made
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /  \1\t/' | expand -t 14

build: ## build bin/strata and bin/backends/strata-backend-cpu
	$(BUILD) -o bin/strata ./cmd/strata
	$(BUILD) -o bin/backends/strata-backend-cpu ./backends/cpu

run: build ## build, then serve models/pebble-q4-mtp.gguf on 127.0.0.1:8080
	bin/strata serve

test: ## run the tests with Go alone
	@$(missing_references)
	$(GO) test -timeout 20m $(PACKAGES)

generate: ## write the Go code of the .proto files again
	$(GO) run ./plugins/proto/generate

clean: ## delete what build made
	rm -rf bin

# ---------------------------------------------------------------------------
# make ci: what "make test" leaves out. Every check is a target of its own. A
# check whose tool is absent prints NOT RUN and counts as failed, and the others
# still run. clang is not among the tools yet: no kernel is generated from C.

CHECKS := format vet lint generated cross references clients arm64 race
.PHONY: $(CHECKS)

ci: ## run every check below; absent tools are printed as NOT RUN and fail
	@failed=; for check in $(CHECKS); do \
	  echo "== make $$check"; \
	  $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; \
	done; \
	if [ -n "$$failed" ]; then echo "make ci: failed or not run:$$failed"; exit 1; fi

# need ends a check with NOT RUN where a program is not on the machine.
need = command -v $(1) >/dev/null || { echo "NOT RUN: make $@ needs $(1), which is not installed"; exit 1; }

format: ## gofmt finds nothing to change
	@files=$$(gofmt -l backends cmd core plugins sdk testdata); \
	if [ -n "$$files" ]; then echo "not formatted (run gofmt -w):"; echo "$$files"; exit 1; fi

vet: ## go vet
	$(GO) vet $(PACKAGES)

lint: ## staticcheck, at the version go.mod names
	$(GO) tool staticcheck $(PACKAGES)

generated: ## the committed protobuf code is what the .proto files generate
	$(GO) run ./plugins/proto/generate -check

# The host and the CPU backend link on every system they are meant for.
cross: ## cross-build for linux/arm64, windows/amd64 and darwin/arm64
	GOOS=linux GOARCH=arm64 $(GO) build -o /dev/null ./cmd/strata ./backends/cpu
	GOOS=windows GOARCH=amd64 $(GO) build -o /dev/null ./cmd/strata ./backends/cpu
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/strata ./backends/cpu

# Models too large for the repository. Tests look for them where
# STRATA_TEST_MODELS points, then beside the repository, and skip without them.
REFERENCES := pebble-bf16.gguf pebble-q8_0.gguf pebble-q4.gguf \
	pebble-mtp-bf16.gguf pebble-mtp-q8_0.gguf \
	tiny-qwen35moe-bf16.gguf tiny-qwen3next-bf16.gguf tiny-qwen3moe-bf16.gguf
missing_references = absent=; for file in $(REFERENCES); do \
	  [ -e "$(STRATA_TEST_MODELS)/$$file" ] || [ -e "../shared/models/$$file" ] || absent="$$absent $$file"; \
	done; \
	if [ -n "$$absent" ]; then echo "NOT RUN: tests on$$absent: set STRATA_TEST_MODELS to the folder that holds them"; fi

references: ## the models of the parity tests are present
	@$(missing_references); test -z "$$absent"

clients: build ## client libraries for Node talk to the real server
	@$(call need,node)
	@$(call need,npm)
	@$(MAKE) --no-print-directory $(CLIENTS)
	cd testdata/clients && node --test --test-reporter=spec

# npm writes this file when it has installed what the lock names.
CLIENTS := testdata/clients/node_modules/.package-lock.json
$(CLIENTS): testdata/clients/package.json testdata/clients/package-lock.json
	cd testdata/clients && npm ci --no-audit --no-fund

# The portable and the arm64 code paths, on an emulated processor. The packages
# are those that compute; -short because emulation is 10 to 30 times slower.
arm64: ## run the numeric tests as arm64 programs under qemu
	@$(call need,qemu-aarch64)
	GOARCH=arm64 $(GO) test -short -timeout 20m -exec qemu-aarch64 ./sdk/quant/... ./sdk/ops/... ./backends/cpu/...

# -short leaves out the replays of whole recorded references: they compute the
# same on one goroutine as on many, and under the race detector take ten times
# as long. The detector needs cgo, hence gcc.
race: ## run the tests under the race detector
	@$(call need,gcc)
	CGO_ENABLED=1 $(GO) test -race -short -timeout 20m $(PACKAGES)
