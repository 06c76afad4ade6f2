# ctrlmesh: `make demo` and `make test` need Rust (rustup), Go, make and a C compiler; they do all set-up themselves.
# Everything that is built or downloaded lies outside the clone, so that a fresh clone finds it again.

SHELL := /bin/sh
.DEFAULT_GOAL := help

export CTRLMESH_CACHE ?= $(HOME)/.cache/ctrlmesh
export CARGO_TARGET_DIR ?= $(CTRLMESH_CACHE)/target
BIN := $(CARGO_TARGET_DIR)/debug
PLUGINS := $(CTRLMESH_CACHE)/plugins
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# `make images`: for which architecture (amd64, arm64), and what their names begin with.
HOST_ARCH := $(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
IMAGE_ARCH ?= $(HOST_ARCH)
IMAGE_REGISTRY ?= docker.io/library
IMAGE_MACHINE = $(patsubst arm64,aarch64,$(patsubst amd64,x86_64,$(IMAGE_ARCH)))
IMAGE_TARGET = $(IMAGE_MACHINE)-unknown-linux-musl
PRECOMPILED = $(CTRLMESH_CACHE)/precompiled/$(IMAGE_ARCH)
# Each relocated address of a program takes 24 bytes, which are read at its start and stay in memory; packed, it takes a bit. zig's linker
# can't pack them.
IMAGE_RUSTFLAGS = CARGO_TARGET_$(shell echo $(IMAGE_TARGET) | tr a-z- A-Z_)_RUSTFLAGS

# `make release` and `make publish`: where the files are, for which architectures, and the registry, such as ghcr.io/you.
RELEASE_DIR ?= $(CTRLMESH_CACHE)/release/$(VERSION)
RELEASE_ARCHS ?= amd64 arm64
RELEASE_REGISTRY ?=
RELEASE_PLUGINS := circuit-breaker fault-inject rate-limit shard-selector trim-objects
RELEASE_IMAGES := ctrlmesh-proxy ctrlmesh-manager
RELEASE_ARCHIVES = $(foreach arch,$(RELEASE_ARCHS),$(RELEASE_IMAGES:%=$(CTRLMESH_CACHE)/images/%-$(VERSION)-linux-$(arch).tar))
# `PREBUILT=1` is for jobs that get from other jobs what the prerequisites of tests/e2e (docs/adr/0060), of images and of a release
# (docs/adr/0064) make. `build`, `plugins` and `release-images` then compile nothing, and fail if a file is missing. Tests in tests/e2e run
# E2E_PROGRAMS.
PREBUILT ?=
E2E_PROGRAMS := ctrlmesh ctrlmesh-manager ctrlmesh-proxy kube-rs-operator
REQUIRE_FILES = @for file in $(1); do test -f $$file || \
	{ echo "error: PREBUILT is set, but there is no $$file; without PREBUILT, make builds it" >&2; exit 1; }; done
# The Helm that tests use, by the version in its go.mod.
HELM = go -C $(CURDIR)/tests/e2e/binaries/helm tool helm

.PHONY: help
help: ## Shows the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Try it

.PHONY: demo
demo: build ## A manager and two replicas of an unmodified controller, sharded, then disturbed step by step; offline, about a minute once built
	@$(BIN)/ctrlmesh demo

# The example makes cargo resolve features as for tests. Without it `cargo test` would build tokio, and all that depends on it, once more.
.PHONY: build
ifdef PREBUILT
build:
	$(call REQUIRE_FILES,$(E2E_PROGRAMS:%=$(BIN)/%))
else
build: setup ## The command, the sidecar and the manager, and an operator for tests
	cargo build --locked --workspace --bins --example hello
	@echo "built: $(BIN)/ctrlmesh, $(BIN)/ctrlmesh-proxy and $(BIN)/ctrlmesh-manager"
endif

.PHONY: setup
setup: ## The Rust target of plugins (rust-toolchain.toml names the compiler)
	@rustup target list --installed | grep -qx wasm32-wasip2 || rustup target add wasm32-wasip2

##@ Develop

.PHONY: dev
dev: build ## API server in memory, manager, two sidecars and a controller; rebuilt and restarted on each change, until Ctrl-C
	@$(BIN)/ctrlmesh dev

# rustdoc merges its search index into that of an earlier run, which takes longer (175 s) than to document all crates anew (35 s).
# The comparison of docs/reference needs a build of all crates, unlike the lines before it: minutes in a cold run, seconds in
# a warm one. It asks the sidecar's program, which cargo does not build for a test of another package. In a full run `make test` finds that build and adds nothing, because features are those of the whole workspace.
.PHONY: check
check: setup ## Formatting, lints, rustdoc, the SDK's archive, generated files and tables of flags and metrics, types of fuzz targets and Envoy's filter
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	rm -rf $(CARGO_TARGET_DIR)/doc
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --locked --workspace --no-deps \
		--lib --bins --examples --document-private-items
	cargo build --locked --workspace --bin ctrlmesh-proxy --example hello
	cargo test --locked --workspace --test documents -- reference
	cargo check --locked --manifest-path fuzz/Cargo.toml --all-targets
	cargo check --locked --manifest-path benches/envoy-filter/Cargo.toml
	$(MAKE) crate
	@if cargo deny --version >/dev/null 2>&1; then $(MAKE) deny; \
		else echo "no cargo-deny: of deny.toml only the forbidden crates are checked (tests/documents)"; fi
	cd tests/e2e && test -z "$$(gofmt -l .)" && go vet ./...
	$(MAKE) golden
	git diff --exit-code -- tests/golden testkit/src/protobuf

.PHONY: deny
deny: ## Dependencies that deny.toml forbids, their licences and sources; needs cargo-deny
	cargo deny --locked check bans licenses sources

.PHONY: test-fast
# `--tests` selects libraries and programs, too, but not the native builds of plugins, whose sources are tested as plugins. As for
# `test-rust`, most tests wait for something most of the time.
test-fast: export RUST_TEST_THREADS ?= 8
test-fast: build ## Rust tests that need no cluster; leaves out the demo and the plugin guide's build; under 3 minutes once built
	$(CARGO_TEST) --locked --workspace --tests -- $(addprefix --skip ,$(SLOW_TESTS))

# nextest runs the tests of all crates side by side; nothing depends on it.
CARGO_TEST = $$(cargo nextest --version >/dev/null 2>&1 && echo cargo nextest run || echo cargo test)
SLOW_TESTS := demo_checks_all_hold guide_leads_from_an_empty_folder_to_a_plugin_in_force

.PHONY: crate
crate: ## The SDK's archive for crates.io, built from the archive alone, offline
	CARGO_TARGET_DIR=$(CTRLMESH_CACHE)/crate CARGO_PROFILE_DEV_DEBUG=false \
		cargo package --locked --offline --allow-dirty -p ctrlmesh-sdk

.PHONY: bench
bench: bench-build ## What has a budget but filtered watches, as ratios of one run, about ten minutes; results also in CARGO_TARGET_DIR/bench (docs/benchmarks.md)
	$(CARGO_TARGET_DIR)/release/ctrlmesh-bench $(BENCH_ARGS)

.PHONY: bench-all
bench-all: bench-build ## All measurements with all proxies, about an hour; BENCH_ARGS="--envoy FILE --envoy-filter FILE" adds Envoy
	$(CARGO_TARGET_DIR)/release/ctrlmesh-bench --all $(BENCH_ARGS)

# Flags of ctrlmesh-bench, such as `--only requests --rounds 9`.
BENCH_ARGS ?=

# With the dev profile, which tests have built.
INSTRUCTIONS := $(BIN)/ctrlmesh-bench --only instructions --output-dir $(CARGO_TARGET_DIR)/instructions
BASELINES := benches/instructions.json

.PHONY: instructions
instructions: build ## Counts instructions per request, and fails at 5 % above benches/instructions.json; needs valgrind (docs/benchmarks.md)
	$(INSTRUCTIONS) --check $(BASELINES)

.PHONY: instructions-update
instructions-update: build ## Writes benches/instructions.json from a new count
	$(INSTRUCTIONS) --update $(BASELINES)

.PHONY: bench-build
bench-build: setup
	cargo build --locked --release --workspace --bin ctrlmesh-proxy --bin ctrlmesh-bench

.PHONY: envoy-filter
envoy-filter: setup ## The rate limit that Envoy runs in `make bench-all`; needs the Rust target wasm32-wasip1
	cargo build --locked --release --target wasm32-wasip1 --manifest-path benches/envoy-filter/Cargo.toml

##@ Test

.PHONY: test
test: test-rust test-instructions test-e2e ## Everything: Rust tests, then real operators against a real kube-apiserver

# Most tests wait for something most of the time, so there are more threads than processors.
.PHONY: test-rust
test-rust: export RUST_TEST_THREADS ?= 8
test-rust: build ## Rust tests only
	cargo test --locked --workspace
	cargo test --locked --manifest-path fuzz/Cargo.toml --lib

# CTRLMESH_INSTRUCTIONS: `required` fails without valgrind, `none` leaves this out.
.PHONY: test-instructions
test-instructions: build
	@case "$$CTRLMESH_INSTRUCTIONS" in none) exit 0 ;; required) ;; *) \
		command -v valgrind >/dev/null || { echo "no valgrind: instructions are not counted (make instructions)"; exit 0; } ;; \
	esac; \
	$(INSTRUCTIONS) --check $(BASELINES)

test-e2e e2e-cluster e2e-node e2e-upgrade soak: export CTRLMESH_PROXY_BIN = $(BIN)/ctrlmesh-proxy
test-e2e e2e-cluster e2e-node e2e-upgrade soak measure-trimming: export CTRLMESH_MANAGER_BIN = $(BIN)/ctrlmesh-manager
test-e2e e2e-cluster e2e-node e2e-upgrade soak measure-trimming: export CTRLMESH_KUBE_RS_OPERATOR_BIN = $(BIN)/kube-rs-operator
test-e2e e2e-cluster e2e-node e2e-upgrade soak measure-trimming: export CTRLMESH_PLUGINS_DIR = $(PLUGINS)
E2E = cd tests/e2e && go test -count=1 -p 1
# Packages that need root on Linux, for namespaces, mounts and control groups.
NODE_PACKAGES := lifecycle memory netns realnode
# The test that also needs ctrlmesh of the earlier commit.
UPGRADE_TEST := ^TestUpgradeKeepsOperatorRunning$$

.PHONY: test-e2e
test-e2e: build plugins cluster earlier ## Real kube-apiserver, etcd, operators and kubectl through the sidecar; for root on Linux a real node
	$(E2E) -timeout 30m -parallel 8 ./...

# The parts of test-e2e, for CI jobs that run at the same time, are this one, e2e-node and e2e-upgrade.
.PHONY: e2e-cluster
e2e-cluster: build plugins cluster-without-node ## Operators and kubectl against a real kube-apiserver; two tests of redirected traffic need root
	$(E2E) -timeout 30m -parallel 8 $$(go list ./... | grep -v $(foreach package,$(NODE_PACKAGES),-e '/$(package)/' -e '/$(package)$$'))

.PHONY: soak-model
soak-model: export CTRLMESH_MODEL_CASES ?= 20000
soak-model: setup ## The models of hand-overs with CTRLMESH_MODEL_CASES random runs each; CTRLMESH_MODEL_SEED repeats those of a failure
	cargo test --locked --workspace --lib hand_over

.PHONY: soak-reuse
soak-reuse: export CTRLMESH_REUSE_STREAMS ?= 5000
soak-reuse: setup ## CTRLMESH_REUSE_STREAMS random streams with and without repeated verdicts; CTRLMESH_REUSE_SEED repeats those of a failure
	cargo test --locked --workspace --lib reuse::tests::differential

.PHONY: scale
scale: setup ## Requests and decisions of the manager with up to 10,000 simulated sidecars, compared with docs/scale.md; release profile
	for sidecars in 10 1000 10000; do \
		CTRLMESH_SCALE_SIDECARS=$$sidecars cargo test --locked --release -p ctrlmesh-manager-rollout \
			--lib tests::scale -- --nocapture --test-threads=1 || exit 1; \
	done
	for sidecars in 10 1000; do \
		CTRLMESH_SCALE_SIDECARS=$$sidecars cargo test --locked --release -p ctrlmesh-manager \
			--lib tests::scale -- --nocapture --test-threads=1 || exit 1; \
	done

.PHONY: e2e-node
e2e-node: export CTRLMESH_NODE = required
e2e-node: build plugins cluster ## A real node with kubelet, containerd and runc; memory limits; redirected traffic; needs root on Linux
	$(E2E) -timeout 25m -v -skip '$(UPGRADE_TEST)' $(NODE_PACKAGES:%=./%/...)

.PHONY: e2e-upgrade
e2e-upgrade: export CTRLMESH_NODE = required
e2e-upgrade: build plugins cluster earlier ## An upgrade from an earlier commit on a real node, with kustomize and with Helm; needs root on Linux
	$(E2E) -timeout 25m -v -run '$(UPGRADE_TEST)' ./lifecycle

.PHONY: soak
soak: export CTRLMESH_CHAOS_ROUNDS ?= 100
soak: export CTRLMESH_CHAOS_KEYED_ROUNDS ?= 300
soak: build plugins cluster ## Random edits, deletions and kills: 100 rounds with labels and 300 with keys (CTRLMESH_CHAOS_ROUNDS, _KEYED_ROUNDS, _SEED); a minute each
	$(E2E) -timeout 24h -v -run '^TestChaosNeverGives' .

# Its times are those of a release build.
.PHONY: measure-trimming
measure-trimming: export CTRLMESH_PROXY_BIN = $(CARGO_TARGET_DIR)/release/ctrlmesh-proxy
measure-trimming: export CTRLMESH_TRIMMED_OBJECTS ?= 5000
measure-trimming: export CTRLMESH_TRIMMING_ROUNDS ?= 3
measure-trimming: build bench-build plugins cluster-without-node ## Heap, CPU and bytes that trim-objects saves an operator with 5,000 objects (CTRLMESH_TRIMMED_OBJECTS); some minutes
	$(E2E) -timeout 60m -v -run '^TestTrimmedObjectsCostOperatorLess$$' .

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZ_SECONDS (60); needs a nightly compiler and cargo-fuzz
	for target in $$(cargo +nightly fuzz list --fuzz-dir fuzz); do \
		cargo +nightly fuzz run --fuzz-dir fuzz $$target -- -max_total_time=$${FUZZ_SECONDS:-60} || exit 1; \
	done

.PHONY: plugins
ifdef PREBUILT
plugins:
	$(call REQUIRE_FILES,$(RELEASE_PLUGINS:%=$(PLUGINS)/%.wasm))
else
plugins: setup ## Writes every plugin and test guest as .wasm files
	cargo run --locked -p ctrlmesh-plugins-builtin --features guests --bin write-plugins -- $(PLUGINS)
endif

.PHONY: cluster cluster-without-node earlier
ifdef PREBUILT
# The tests name programs that are missing, and say how to build them.
cluster cluster-without-node earlier: ;
else
cluster: ## Builds kube-apiserver, etcd, kubectl, Helm, cert-manager and an OCI registry from Go modules, once; for root on Linux a node's programs, too
	cd tests/e2e && go run ./cmd/build

cluster-without-node:
	cd tests/e2e && go run ./cmd/build -node=false

earlier: build ## Builds ctrlmesh of the commit from which tests upgrade, once; needs a clone with history (docs/adr/0042)
	cd tests/e2e && go run ./cmd/earlier -target=$(CARGO_TARGET_DIR)
endif

##@ Generate

.PHONY: docs
docs: build ## Writes docs/reference from the programs: flags and metrics; a test fails on a difference
	CTRLMESH_WRITE_REFERENCE=1 cargo test --locked --workspace --test documents -- reference

.PHONY: rbac
rbac: ## Writes deploy/rbac from the rules beside the manager's code; a test fails on a difference
	cargo run --locked --quiet --bin write-rbac -- deploy/rbac
	$(MAKE) chart

.PHONY: crd
crd: ## Writes deploy/crd from the manager's types; a test fails on a difference
	cargo run --locked --quiet --example write-crds -- deploy/crd
	$(MAKE) chart

.PHONY: chart
chart: ## Copies deploy/crd, rbac and webhook into the Helm chart, which can't read outside of itself; a test fails on a difference
	@rm -rf deploy/helm/ctrlmesh/files
	@for part in crd rbac webhook; do \
		mkdir -p deploy/helm/ctrlmesh/files/$$part && cp deploy/$$part/*.yaml deploy/helm/ctrlmesh/files/$$part/ || exit 1; \
	done

.PHONY: sdk
sdk: ## Copies wit/ and the licence into sdk/, whose archive can't read outside of itself; a test fails on a difference
	@rm -rf sdk/wit && mkdir sdk/wit && cp wit/*.wit sdk/wit/ && cp LICENSE sdk/LICENSE

.PHONY: golden
golden: ## Asks upstream's own parsers again (tests/golden), and writes the test kit's schema of protobuf
	cd tests/golden && go run .

##@ Release

# Rust brings musl, but aws-lc and mimalloc are C. The crate cc looks for a compiler with the machine's name, which Debian's musl-dev has,
# and only on amd64 for `musl-gcc`, too. The manager contains the files that `plugins` wrote and that are precompiled for the sidecar.
.PHONY: images
images: setup plugins ## OCI archives of the sidecar's and the manager's image, without a daemon (docs/install.md)
	@rustup target list --installed | grep -qx $(IMAGE_TARGET) || rustup target add $(IMAGE_TARGET)
	@if test "$$(uname -s) $(IMAGE_ARCH)" = "Linux $(HOST_ARCH)"; then \
		build=build; \
		if ! command -v $(IMAGE_MACHINE)-linux-musl-gcc >/dev/null; then \
			command -v musl-gcc >/dev/null || \
				{ echo "error: no C compiler for musl; install one (Debian: apt-get install musl-tools)" >&2; exit 1; }; \
			export CC_$(subst -,_,$(IMAGE_TARGET))=musl-gcc; \
		fi; \
		export $(IMAGE_RUSTFLAGS)="-Clink-arg=-Wl,-z,pack-relative-relocs"; \
	else \
		build=zigbuild; \
		command -v cargo-zigbuild >/dev/null || \
			{ echo "error: no C compiler for $(IMAGE_TARGET); install one (pip install ziglang cargo-zigbuild)" >&2; exit 1; }; \
	fi; \
	CTRLMESH_PREBUILT_PLUGINS=$(PLUGINS) cargo $$build --locked --profile image --target $(IMAGE_TARGET) \
		-p ctrlmesh-proxy -p ctrlmesh-manager --bin ctrlmesh-proxy --bin ctrlmesh-manager
	@rm -rf $(PRECOMPILED) && mkdir -p $(PRECOMPILED)
	@if test "$(IMAGE_ARCH)" = "$(HOST_ARCH)"; then \
		$(CARGO_TARGET_DIR)/$(IMAGE_TARGET)/image/ctrlmesh-proxy precompile --out $(PRECOMPILED) \
			$(RELEASE_PLUGINS:%=$(PLUGINS)/%.wasm); \
	else echo "warning: the sidecar's image for $(IMAGE_ARCH) has no precompiled plugins, so its sidecars compile them" >&2; fi
	cd tests/e2e && go run ./cmd/images -programs=$(CARGO_TARGET_DIR)/$(IMAGE_TARGET)/image -precompiled=$(PRECOMPILED) \
		-archives=$(CTRLMESH_CACHE)/images \
		-version=$(VERSION) -registry=$(IMAGE_REGISTRY) $(RELEASE_PLUGINS:%=$(PLUGINS)/%.wasm)

# The archives of a release. Only those of this machine's architecture have precompiled plugins, so jobs on machines of each architecture
# build them, and one of them takes all with PREBUILT.
.PHONY: release-images
ifdef PREBUILT
release-images:
	$(call REQUIRE_FILES,$(RELEASE_ARCHIVES))
else
release-images:
	@for arch in $(RELEASE_ARCHS); do $(MAKE) images IMAGE_ARCH=$$arch || exit 1; done
endif

.PHONY: release-dry-run
release-dry-run: plugins crate ## The files of a release but its images: chart, plugins, SDK, SBOM, checksums; in RELEASE_DIR
	@rm -rf $(RELEASE_DIR) && mkdir -p $(RELEASE_DIR)
	@for plugin in $(RELEASE_PLUGINS); do \
		cp $(PLUGINS)/$$plugin.wasm $(RELEASE_DIR)/ctrlmesh-plugin-$$plugin-$(VERSION).wasm || exit 1; \
	done
	cp $(CTRLMESH_CACHE)/crate/package/ctrlmesh-sdk-$(VERSION).crate $(RELEASE_DIR)/
	$(HELM) package $(CURDIR)/deploy/helm/ctrlmesh --destination $(RELEASE_DIR)
	@if cargo cyclonedx --version >/dev/null 2>&1; then $(MAKE) sbom; \
		else echo "warning: no cargo-cyclonedx, so there is no SBOM; cargo install --locked cargo-cyclonedx@0.5.9" >&2; fi
	@$(MAKE) checksums

.PHONY: release
release: ## All files of a release, with images for RELEASE_ARCHS; needs cargo-cyclonedx; without PREBUILT=1 also musl-tools and, for another architecture, zig
	@cargo cyclonedx --version >/dev/null || { echo "error: cargo install --locked cargo-cyclonedx@0.5.9" >&2; exit 1; }
	@grep -q '^## \[$(VERSION)\]' CHANGELOG.md || { echo "error: CHANGELOG.md has no section [$(VERSION)]" >&2; exit 1; }
	$(MAKE) release-dry-run
	$(MAKE) release-images
	cp $(RELEASE_ARCHIVES) $(RELEASE_DIR)/
	@$(MAKE) checksums

# cargo-cyclonedx writes beside the manifest.
.PHONY: sbom
sbom: # The crates in each image, as CycloneDX.
	@for program in proxy manager; do \
		file=ctrlmesh-$$program-$(VERSION).cdx; \
		cargo cyclonedx --manifest-path $$program/Cargo.toml --format json --spec-version 1.5 --target $(IMAGE_TARGET) \
			--override-filename $$file && mv $$program/$$file.json $(RELEASE_DIR)/ || exit 1; \
	done

.PHONY: checksums
checksums:
	@cd $(RELEASE_DIR) && rm -f SHA256SUMS && sha256sum * >SHA256SUMS && cat SHA256SUMS

.PHONY: version
version:
	@echo $(VERSION)

.PHONY: release-notes
release-notes: ## This version's section of CHANGELOG.md
	@awk '/^## / { show = index($$0, "## [$(VERSION)]") == 1; next } show' CHANGELOG.md

.PHONY: publish
publish: ## Pushes what `make release` wrote: images, chart and plugins to RELEASE_REGISTRY, the SDK to crates.io; needs buildah and wkg
	@test -n "$(RELEASE_REGISTRY)" || { echo "error: RELEASE_REGISTRY is empty; name a registry and a path, such as ghcr.io/you" >&2; exit 1; }
	cd $(RELEASE_DIR) && sha256sum --check --quiet SHA256SUMS
	for image in $(RELEASE_IMAGES); do \
		name=$(RELEASE_REGISTRY)/$$image:$(VERSION); \
		buildah manifest create $$name || exit 1; \
		for arch in $(RELEASE_ARCHS); do \
			buildah manifest add $$name oci-archive:$(RELEASE_DIR)/$$image-$(VERSION)-linux-$$arch.tar || exit 1; \
		done; \
		buildah manifest push --all $$name docker://$$name || exit 1; \
	done
	for plugin in $(RELEASE_PLUGINS); do \
		wkg oci push $(RELEASE_REGISTRY)/plugins/$$plugin:$(VERSION) $(RELEASE_DIR)/ctrlmesh-plugin-$$plugin-$(VERSION).wasm || exit 1; \
	done
	$(HELM) push $(RELEASE_DIR)/ctrlmesh-$(VERSION).tgz oci://$(RELEASE_REGISTRY)/charts
	cargo publish --locked -p ctrlmesh-sdk
