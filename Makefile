# warmstart: make help
PREFIX  ?= /usr/local
DESTDIR ?=
PYTHON  ?= /usr/bin/python3
# Where packages go that are built here.
PACKAGES ?= build/packages
# Test processes: on two cores four leave a quarter of the time unused, as many tests wait for Slurm.
JOBS    ?= $(shell expr $$(nproc) + 3)
VENV    := .venv
BIN     := $(VENV)/bin

# PREFIX=/usr keeps its policy in /etc and its state in /var, any other prefix below itself.
ETC := $(if $(filter /usr,$(PREFIX)),/etc/warmstart,$(PREFIX)/etc/warmstart)
VAR := $(if $(filter /usr,$(PREFIX)),/var/lib/warmstart,$(PREFIX)/var/lib/warmstart)
RUN := $(if $(filter /usr,$(PREFIX)),/run/warmstart,$(PREFIX)/run/warmstart)

# Test processes find the tests compiled: compiling them takes each one seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests setup-sweeps screenshots demo test test-all fuzz gpu unit lint shellcheck docs bench install deb rpm wheel uninstall update-requirements clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## install what this machine lacks: Debian packages (as root) and a private venv
	@packaging/setup $(VENV) $(PYTHON) hooks cli test lint

setup-tests: setup
	@packaging/setup $(VENV) $(PYTHON) torch tools

setup-sweeps: setup
	@packaging/setup $(VENV) $(PYTHON) sweep

screenshots: setup-sweeps ## docs/images: what people see
	@set -e; $(foreach tool,$(wildcard tests/lib/wings/*/screenshots.py),$(BIN)/python -m $(subst /,.,$(tool:.py=));)
	@$(BIN)/python -m tools.picture

demo: ## a real four-node cluster here, as root, the same jobs without warmstart and with it; KEEP=1 leaves it up
	@export STARTED=$$(date +%s); packaging/setup $(VENV) $(PYTHON) hooks cli demo && \
	exec tools/reachable $(BIN)/python -m tools.demo $(if $(KEEP),--keep)

test: setup ## every promise once: the unit tests as anybody, and as root one node, a real Slurm, faults; six minutes
	tools/reachable tests/run -n $(JOBS)

test-all: setup-tests setup-sweeps ## every test: the sweeps, torch and JAX, other releases of Slurm; figures in build/reliability
	tools/reachable tests/run -n $(JOBS) -m '' tests/releases

fuzz: setup ## SECONDS (600) of random bytes for each parser of foreign ones; what fails is kept in tests/faults/corpus
	$(BIN)/python -m tools.fuzz $(or $(SECONDS),600)

gpu: ## each GPU tool that PYTHON has, cold and warm on this machine's GPU; a line for each in build/gpu.jsonl (docs/gpu.md)
	@export PYTHONPATH="hooks:.$${PYTHONPATH:+:$$PYTHONPATH}"; \
	$(PYTHON) -m tests.tools.gpu $(if $(RESULTS),--results "$(RESULTS)") $(TOOLS)

unit: ## unit tests alone, with the venv of make setup: neither root nor Slurm, two minutes
	@[ -x $(BIN)/pytest ] || { echo "warmstart: there is no venv with pytest in $(VENV); run make setup first" >&2; exit 1; }
	tools/reachable tests/unprivileged -n $(JOBS)

lint: setup ## ruff, mypy --strict, shellcheck, import contracts, stale docs
	$(BIN)/python -m tools.policy_reference --check
	$(BIN)/ruff format --check hooks tests tools
	$(BIN)/ruff check hooks tests tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) -s shellcheck

shellcheck:
	shellcheck -x packaging/setup packaging/install packaging/uninstall packaging/update-requirements \
		packaging/release packaging/stage packaging/deb packaging/rpm packaging/package/configure \
		packaging/package/remove packaging/package/postrm \
		packaging/libexec/hook.in packaging/libexec/task-prolog.in packaging/libexec/pyxis-importer.in \
		packaging/libexec/apptainer-environment.in \
		packaging/enroot/40-warmstart.sh.in $(wildcard hooks/warmstart/wings/*/enroot/*.in) packaging/nhc/warmstart.nhc packaging/slinky/jail \
		tests/lib/fakes/enroot tests/releases/build tests/releases/enter tests/releases/real tests/releases/with-slurm \
		tests/releases/packages/bare tests/releases/packages/fresh tests/releases/packages/works tests/tools/gpu/quick tests/run tests/unprivileged tools/reachable .ci/run

docs: setup ## the documents as a site, build/site/index.html; before it, the pages that are made from the code
	$(BIN)/python -m tools.policy_reference
	@packaging/setup $(VENV) $(PYTHON) docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: setup ## figures beside their peers, as root: build/bench.json; QUICK=1: five minutes
	$(BIN)/python -m tools.bench $(if $(QUICK),--quick)

install: ## install below PREFIX (and DESTDIR); a policy that is there stays
	@packaging/install "$(VENV)" "$(PYTHON)" "$(PREFIX)" "$(DESTDIR)" "$(ETC)" "$(VAR)" "$(RUN)"

deb: ## build/packages/*.deb for the Debian or Ubuntu that this is: warmstart and its SPANK plugin
	@packaging/deb "$(VENV)" "$(PYTHON)" "$(PACKAGES)"

rpm: ## the same as rpm packages; EL 9: PYTHON=/usr/bin/python3.12
	@packaging/rpm "$(VENV)" "$(PYTHON)" "$(PACKAGES)"

wheel: ## the command line alone, as a wheel and a source archive, for people who have no node at hand
	@packaging/setup $(VENV) $(PYTHON) lock
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(stat -c %Y CHANGELOG.md)} $(BIN)/uv --quiet --no-config build -o "$(PACKAGES)" .

uninstall: ## remove what install made; policy and state stay, no mount does
	@packaging/uninstall "$(PREFIX)" "$(DESTDIR)" "$(ETC)" "$(VAR)" "$(RUN)"

update-requirements: ## lock the newest Python packages that setup.cfg allows (packaging/requirements)
	@packaging/setup $(VENV) $(PYTHON) lock
	@packaging/update-requirements $(VENV)

include packaging/spank/spank.mk

clean: ## remove build products; the venv stays
	rm -rf build hooks/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
