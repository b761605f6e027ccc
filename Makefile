# Everything that a newcomer, a contributor and CI run. `make help` lists it.

SHELL := bash
.DEFAULT_GOAL := help
CARGO ?= cargo
BINARIES = $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help setup build demo test test-all test-long test-rdma test-packages test-image test-helm test-k8s test-release model miri sanitize fuzz simulate-faults instructions lint fmt clippy doc docs \
	deny bench bench-rdma peers packages image release simulate wheel

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Install what the demo and the tests need, saying what and why
	@scripts/setup.sh

build: ## Build the release binary: target/release/forebay
	$(CARGO) build --release --bin forebay

wheel: ## Build the Python wheel, target/wheels/forebay-….whl, with the program in it, and try it (ARGS="--quick", "--interpreter python3.14t")
	@scripts/python.py wheel $(ARGS)

demo: setup ## A bucket, a cache and a mount on this machine, every byte checked
	$(CARGO) build --release --bin forebay --bin forebay-testkit-s3 --bin forebay-demo
	"$(BINARIES)/forebay-demo"

test: setup ## Unit, property, conformance and end-to-end tests
	@scripts/test.py

test-all: setup ## Those, those of test-rdma (few where the machine is emulated), and ten simulated hours with a fresh seed: what CI runs
	@scripts/test.py --all

test-long: setup ## What takes too long for `make test` or needs a machine that does nothing else, faults in each mode of security, cert-manager if Go is there, and `make fuzz`: some hours
	@FOREBAY_TEST_LONG=1 scripts/test.py --all --jobs 1
	@$(MAKE) --no-print-directory fuzz

test-rdma: ## RDMA over real verbs between two Soft-RoCE devices, in a virtual machine that this fetches
	@scripts/rdma-test.sh

test-packages: packages ## Install, kill, upgrade under a reader and purge in a Debian of its own with systemd as process 1 (root, mmdebstrap)
	@scripts/rootfs-test.sh

test-image: image ## Run the image without rights, and a mount of it that the host sees (root, podman)
	@scripts/image-test.sh

test-helm: ## The chart: lint, what it renders, schemas, what it refuses; builds helm from Go modules once (FOREBAY_BLESS=1 renews what is expected)
	@scripts/helm.sh test

test-k8s: image ## The chart and its operator on a real Kubernetes, built from Go modules once: install, read, upgrade under a reader, drain (root, Go, containerd)
	@scripts/k8s-test.sh

test-release: ## Each file of `make release`, installed: signature, packages, wheel, image, chart
	@scripts/release-test.sh

model: ## Every order of threads in lock-free parts (loom), thousands in those with locks (shuttle)
	@scripts/model.sh

miri: ## Memory, spans and parsing under Miri; needs a nightly toolchain
	@scripts/miri.sh

sanitize: ## Store and transports under AddressSanitizer and ThreadSanitizer; needs a nightly toolchain (ARGS="thread": one of them)
	@scripts/sanitize.sh $(ARGS)

fuzz: ## Every parser of what comes from outside, fed by libFuzzer for 60 s (FUZZ_SECONDS=, ARGS="--only NAME --seconds N"); docs/VERIFICATION.md
	@scripts/fuzz.sh $(ARGS)

instructions: ## What a read that hits memory takes, in instructions, against tests/instructions.toml
	@scripts/instructions.sh

docs: ## Build the documentation site, target/site/index.html, and check every link (installs mdBook, saying so)
	@scripts/docs.sh

lint: fmt clippy doc deny ## Format, clippy, rustdoc, cargo-deny

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

# With examples, dependencies have the features that clippy and the tests give them, and need not be checked once more. Nor need the
# workspace: clippy has, with this compiler and this variable. Where its own are others one day, it is checked once more, and no less.
doc:
	@driver="$$(rustc --print sysroot)/bin/clippy-driver"; \
	[ ! -x "$$driver" ] || export RUSTC_WORKSPACE_WRAPPER="$$driver" CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__; \
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --all-features --lib --bins --examples

deny:
	@scripts/deny.sh

bench: setup ## Measure this machine, about an hour: the tables of docs/benchmarks/run.md (ARGS="--help" tells more)
	$(CARGO) build --release --bin forebay --bin forebay-testkit-s3 --bin forebay-bench
	"$(BINARIES)/forebay-bench" $(ARGS)

bench-rdma: ## Verbs, UCX and perftest, one-sided reads and striping between Soft-RoCE devices, in the machine of test-rdma (ARGS="--help" tells more)
	$(CARGO) build --release --bin forebay
	@scripts/rdma-bench.py --program "$(BINARIES)/forebay" $(ARGS)

packages: ## target/packages: .deb and .rpm of the program, of the C library and of what one compiles with
	@scripts/packages.sh

image: ## target/image: the container image, as a file for sites without a registry (buildah, mmdebstrap)
	@scripts/image.sh

release: ## target/release-files: packages, image, chart, wheel, list of parts, checksums; built twice, and signed (docs/RELEASING.md)
	@scripts/release.sh

peers: ## Install the file systems that benchmarks compare with
	@scripts/peers.sh

simulate: ## Placement, membership and jobs with 10,000 workers and a billion files, in virtual time (ARGS="--help" tells more)
	$(CARGO) build --release -p forebay-simulate
	"$(BINARIES)/forebay-simulate" $(ARGS)

# With the dependencies that the tests have built, and with debug assertions: only the workspace's own crates are optimised.
simulate-faults: ## A whole cluster in virtual time while things go wrong, one seed one run (ARGS="--seed N --hours H"; "--help" tells more)
	$(CARGO) build --workspace --all-features --bin forebay-simulate-faults --config profile.dev.opt-level=2 --config 'profile.dev.package.forebay-simulate-faults.opt-level=1'
	"$(or $(CARGO_TARGET_DIR),target)/debug/forebay-simulate-faults" $(ARGS)
