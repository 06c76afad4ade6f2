# ctrlmesh: `make demo` and `make test` need Rust (rustup), Go, make and a C compiler; they do all set-up themselves.
# Everything that is built or downloaded lies outside the clone, so that a fresh clone finds it again.

SHELL := /bin/sh
.DEFAULT_GOAL := help

export CTRLMESH_CACHE ?= $(HOME)/.cache/ctrlmesh
export CARGO_TARGET_DIR ?= $(CTRLMESH_CACHE)/target
BIN := $(CARGO_TARGET_DIR)/debug
PLUGINS := $(CTRLMESH_CACHE)/plugins

# `make images`: for which architecture (amd64, arm64), and what their names begin with.
HOST_ARCH := $(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
IMAGE_ARCH ?= $(HOST_ARCH)
IMAGE_REGISTRY ?= docker.io/library
IMAGE_MACHINE = $(patsubst arm64,aarch64,$(patsubst amd64,x86_64,$(IMAGE_ARCH)))
IMAGE_TARGET = $(IMAGE_MACHINE)-unknown-linux-musl
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: help
help: ## Shows the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## A manager and two replicas of an unmodified controller, sharded and tortured live; offline, about 50 s once built
	@$(BIN)/ctrlmesh demo

.PHONY: test
test: test-rust test-e2e ## Everything: Rust tests, then real operators against a real kube-apiserver

.PHONY: setup
setup: ## The Rust target of plugins (rust-toolchain.toml names the compiler)
	@rustup target list --installed | grep -qx wasm32-wasip2 || rustup target add wasm32-wasip2

.PHONY: build
build: setup ## The command, the sidecar and the manager, and an operator for tests
	cargo build --locked --workspace --bins
	@echo "built: $(BIN)/ctrlmesh, $(BIN)/ctrlmesh-proxy and $(BIN)/ctrlmesh-manager"

.PHONY: test-rust
test-rust: build ## Rust tests only
	cargo test --locked --workspace
	cargo test --locked --manifest-path fuzz/Cargo.toml --lib

.PHONY: test-e2e
test-e2e: build plugins cluster earlier ## Real kube-apiserver, etcd, operators and kubectl through the sidecar; for root on Linux a real node
	cd tests/e2e && CTRLMESH_PROXY_BIN=$(BIN)/ctrlmesh-proxy CTRLMESH_MANAGER_BIN=$(BIN)/ctrlmesh-manager \
		CTRLMESH_KUBE_RS_OPERATOR_BIN=$(BIN)/kube-rs-operator CTRLMESH_PLUGINS_DIR=$(PLUGINS) go test -count=1 -timeout 30m -p 1 -parallel 8 ./...

.PHONY: soak
soak: export CTRLMESH_CHAOS_ROUNDS ?= 100
soak: build plugins cluster ## A hundred rounds of random edits, deletions and kills (CTRLMESH_CHAOS_ROUNDS, CTRLMESH_CHAOS_SEED); a minute each
	cd tests/e2e && CTRLMESH_PROXY_BIN=$(BIN)/ctrlmesh-proxy CTRLMESH_MANAGER_BIN=$(BIN)/ctrlmesh-manager \
		CTRLMESH_KUBE_RS_OPERATOR_BIN=$(BIN)/kube-rs-operator CTRLMESH_PLUGINS_DIR=$(PLUGINS) \
		go test -count=1 -timeout 24h -v -run '^TestChaos$$' .

.PHONY: e2e-node
e2e-node: export CTRLMESH_NODE = required
e2e-node: build plugins cluster earlier ## ctrlmesh on a real node with kubelet, containerd and runc, and under a memory limit; needs root on Linux
	cd tests/e2e && CTRLMESH_PROXY_BIN=$(BIN)/ctrlmesh-proxy CTRLMESH_MANAGER_BIN=$(BIN)/ctrlmesh-manager \
		CTRLMESH_PLUGINS_DIR=$(PLUGINS) go test -count=1 -timeout 25m -p 1 -v ./memory/... ./realnode/... ./story/...

# Rust brings musl, but aws-lc and mimalloc are C.
.PHONY: images
images: setup ## OCI archives of the sidecar's and the manager's image, without a daemon (docs/install.md)
	@rustup target list --installed | grep -qx $(IMAGE_TARGET) || rustup target add $(IMAGE_TARGET)
	@if test "$$(uname -s) $(IMAGE_ARCH)" = "Linux $(HOST_ARCH)"; then \
		build=build; \
		command -v $(IMAGE_MACHINE)-linux-musl-gcc >/dev/null || command -v musl-gcc >/dev/null || \
			{ echo "error: no C compiler for musl; install one (Debian: apt-get install musl-tools)" >&2; exit 1; }; \
	else \
		build=zigbuild; \
		command -v cargo-zigbuild >/dev/null || \
			{ echo "error: no C compiler for $(IMAGE_TARGET); install one (pip install ziglang cargo-zigbuild)" >&2; exit 1; }; \
	fi; \
	cargo $$build --locked --profile image --target $(IMAGE_TARGET) \
		-p ctrlmesh-proxy -p ctrlmesh-manager --bin ctrlmesh-proxy --bin ctrlmesh-manager
	cd tests/e2e && go run ./cmd/images -programs=$(CARGO_TARGET_DIR)/$(IMAGE_TARGET)/image -archives=$(CTRLMESH_CACHE)/images \
		-version=$(VERSION) -registry=$(IMAGE_REGISTRY)

.PHONY: plugins
plugins: setup ## Writes every plugin and test guest as .wasm files
	cargo run --locked -p ctrlmesh-plugins-builtin --features guests --bin write-plugins -- $(PLUGINS)

.PHONY: cluster
cluster: ## Builds kube-apiserver, etcd, kubectl, Helm, cert-manager and an OCI registry from Go modules, once; for root on Linux a node's programs, too
	cd tests/e2e && go run ./cmd/build

.PHONY: earlier
earlier: build ## Builds ctrlmesh of the commit from which tests upgrade, once; needs a clone with history (docs/adr/0042)
	cd tests/e2e && go run ./cmd/earlier -target=$(CARGO_TARGET_DIR)

.PHONY: check
check: setup ## Formatting, lints, generated files, the fuzz crate's types
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo check --locked --manifest-path fuzz/Cargo.toml --all-targets
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check bans licenses sources; \
		else echo "no cargo-deny: of deny.toml only the forbidden crates are checked (tests/documents)"; fi
	cd tests/e2e && test -z "$$(gofmt -l .)" && go vet ./...
	$(MAKE) golden
	git diff --exit-code -- tests/golden testkit/src/protobuf

.PHONY: rbac
rbac: ## Writes deploy/rbac from the rules beside the manager's code; a test fails on a difference
	cargo run --locked --quiet -p ctrlmesh-manager --bin write-rbac -- deploy/rbac
	$(MAKE) chart

.PHONY: crd
crd: ## Writes deploy/crd from the manager's types; a test fails on a difference
	cargo run --locked --quiet -p ctrlmesh-manager --bin write-crds -- deploy/crd
	$(MAKE) chart

.PHONY: chart
chart: ## Copies deploy/crd, rbac and webhook into the Helm chart, which can't read outside of itself; a test fails on a difference
	@rm -rf deploy/helm/ctrlmesh/files
	@for part in crd rbac webhook; do \
		mkdir -p deploy/helm/ctrlmesh/files/$$part && cp deploy/$$part/*.yaml deploy/helm/ctrlmesh/files/$$part/ || exit 1; \
	done

.PHONY: sdk
sdk: ## Copies wit/ and the licence into sdk/, whose archive on crates.io can't read outside of itself; a test fails on a difference
	@rm -rf sdk/wit && mkdir sdk/wit && cp wit/*.wit sdk/wit/ && cp LICENSE sdk/LICENSE

.PHONY: golden
golden: ## Asks upstream's own parsers again (tests/golden), and writes the test kit's schema of protobuf
	cd tests/golden && go run .

.PHONY: bench
bench: setup ## Requests, plugin calls, lists, watches, start and reload, as ratios of one run (docs/benchmarks.md)
	cargo build --locked --release --workspace --bin ctrlmesh-proxy --bin ctrlmesh-bench
	$(CARGO_TARGET_DIR)/release/ctrlmesh-bench

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZ_SECONDS (60); needs a nightly compiler and cargo-fuzz
	for target in $$(cargo +nightly fuzz list --fuzz-dir fuzz); do \
		cargo +nightly fuzz run --fuzz-dir fuzz $$target -- -max_total_time=$${FUZZ_SECONDS:-60} || exit 1; \
	done
