# make demo: compare five algorithms on real digits and write a report.
# make check: format, lint, types, spelling, documentation.   make test: the tests, in minutes.   make test-thorough: all of them.
PYTHON ?= python3
BIN := .venv/bin

# make test-gpu: the tests that need a CUDA GPU.
.PHONY: demo check lines prose test test-thorough test-bits test-gpu test-ray test-hf test-oldest test-newest \
	check-wheel check-deploy dist release-check release-notes docs-version lint docs timelines env clean

# What installs says nothing where it succeeds. Where it fails, all that it said is shown.
QUIETLY := sh -c 'out=$$("$$@" 2>&1) || { code=$$?; printf "%s\n" "$$out"; exit $$code; }' quietly
PIP_INSTALL := -m pip install --disable-pip-version-check
INSTALL := $(QUIETLY) $(BIN)/python $(PIP_INSTALL) --no-compile -c constraints.txt

env: .venv/installed

# What the demo needs; `make env` adds the rest to the same environment.
.venv/demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Offbeat needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	@echo "Installing PyTorch and what the demo needs; the README says how much that is."
	@$(INSTALL) -e ".[digits]"
	@touch $@

.venv/installed: .venv/demo papers/pyproject.toml
	@echo "Installing what tests and documentation need."
	@$(INSTALL) -e ".[digits,net,flower,dev,docs]" -e ./papers
	@touch $@

demo: .venv/demo
	rm -rf runs/demo
	$(BIN)/offbeat compare stragglers --out runs/demo
	$(BIN)/offbeat report runs/demo -o runs/demo/report.html
	@echo "The report is runs/demo/report.html: open it in a browser."

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Spelling of what people read, and the number of long sentences: a figure for reviewers, without a limit.
prose: env
	$(BIN)/typos docs src papers/src examples scripts *.md
	@$(BIN)/python scripts/long_sentences.py

# With --quiet, mkdocs neither prints a broken link nor fails because of it, even with --strict.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

timelines: env
	$(BIN)/python docs/timelines.py

# Lines of code by folder, and what the working tree has more than a commit: a figure for reviewers, without a limit.
AGAINST ?= $(shell git rev-parse --quiet --verify HEAD^ 2>/dev/null)

lines: env
	@$(BIN)/python scripts/count_lines.py $(if $(AGAINST),--against $(AGAINST))

check: lint prose docs lines

# Bytecode is written even if the environment says otherwise: the workers and the processes that tests start read it.
# Three workers on two cores: many tests wait for processes and connections of their own.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist loadgroup

test: env
	$(PYTEST)

# Every case of every grid, every kill, and four times as many examples of the property tests.
test-thorough: env
	$(PYTEST) -m '' --hypothesis-profile thorough

# Bit identity where MKL, PyTorch and oneDNN use other instructions, as they do on other processors: those of
# an old one, those of one without AVX-512, and those that MKL has on all. MKL heeds MKL_ENABLE_INSTRUCTIONS on
# Intel's processors only: elsewhere it does there what it does anyway. Only files with such a test are read.
INSTRUCTIONS := "MKL_ENABLE_INSTRUCTIONS=SSE4_2 ATEN_CPU_CAPABILITY=default" \
	"MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2" "MKL_CBWR=COMPATIBLE"
BITS := grep -rl --include='test_*.py' 'pytest\.mark\.bits' tests

test-bits: env
	@printf '%s\n' $(INSTRUCTIONS) | FILES=$$($(BITS)) xargs -P 2 -I SETTING sh -c 'dir=$$(mktemp -d); \
		out=$$(SETTING $(BIN)/pytest -n 0 --basetemp "$$dir/tests" -m "bits and not thorough" $$FILES 2>&1); \
		code=$$?; rm -rf "$$dir"; printf "%s\n%s\n" "SETTING" "$$out"; exit $$code'

# What needs a CUDA GPU. Without one, a sentence.
test-gpu: env
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "there is no CUDA GPU on this machine: run make test-gpu where there is one")'
	$(BIN)/pytest -n 0 -m cuda tests/device tests/local tests/metrics tests/sim

# Ray is large: it has an environment of its own.
.venv-ray/installed: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	@$(QUIETLY) .venv-ray/bin/python $(PIP_INSTALL) -e ".[digits,test,ray]"
	@touch $@

test-ray: .venv-ray/installed
	.venv-ray/bin/pytest tests/sim/executors/test_ray.py tests/sim/executors/test_ray_options.py

# So has what the extra hf brings: the tutorial on LoRA runs here, and elsewhere where the extra is installed.
.venv-hf/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-hf
	@$(QUIETLY) .venv-hf/bin/python $(PIP_INSTALL) -c constraints.txt -e ".[digits,test,hf]"
	@touch $@

test-hf: .venv-hf/installed
	.venv-hf/bin/pytest -n 0 tests/examples_run/test_tutorials.py -k lora

# The tools of a release have an environment of their own: nothing of Offbeat is in it.
.venv-release/installed: pyproject.toml
	$(PYTHON) -m venv .venv-release
	@$(QUIETLY) .venv-release/bin/python $(PIP_INSTALL) --upgrade "pip>=25.1"
	@$(QUIETLY) .venv-release/bin/python $(PIP_INSTALL) --group release
	@touch $@

# The oldest version of each dependency that pyproject.toml allows, and of theirs what goes with it; and the newest,
# which an installation without constraints.txt gets. Versions deprecate what others call, so warnings are no errors
# here. PyTorch has several gigabytes here. Flower is not here: its versions that work bound the others.
RESOLUTION_oldest := lowest-direct
RESOLUTION_newest := highest

.venv-oldest/installed .venv-newest/installed: .venv-%/installed: pyproject.toml .venv-release/installed
	.venv-release/bin/uv venv --quiet --clear --python $(PYTHON) .venv-$*
	.venv-release/bin/uv pip install --quiet --python .venv-$*/bin/python --resolution $(RESOLUTION_$*) \
		-e ".[digits,net,nifti,pandas,secure,test]" -e ./papers
	@touch $@

WITH_OTHERS := -n 3 --dist loadgroup -W default tests/core tests/algorithms tests/local tests/models tests/metrics \
	tests/data tests/world tests/sim tests/recipes tests/runs tests/inference tests/codec tests/cli \
	tests/net/auth tests/net/grpc tests/net/monitor

test-oldest: .venv-oldest/installed
	.venv-oldest/bin/pytest $(WITH_OTHERS)

test-newest: .venv-newest/installed
	.venv-newest/bin/pytest $(WITH_OTHERS)

# All of a release that needs no package index, and what remains. SKIP=oldest,newest,pythons,demo leaves out what downloads much.
REPOSITORY ?=
SKIP ?=

release-check: .venv-release/installed
	.venv-release/bin/python scripts/check_release.py $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(SKIP),--skip $(SKIP))

# The next section of the changelog, from the fragments in changes/. WRITE=--yes writes it and deletes the fragments.
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
WRITE ?=

release-notes: .venv-release/installed
	@.venv-release/bin/towncrier build --version $(VERSION) $(or $(WRITE),--draft)

# The wheels, to copy to machines without a checkout, and their bill of materials.
dist: env
	$(BIN)/python scripts/check_wheel.py --extra net --keep dist

# The documentation of a version, as a commit on the branch gh-pages of this clone; nothing is pushed. mike finds
# mkdocs on the path.
ALIAS ?= dev

docs-version: env
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) $(ALIAS)

# Build the sdist and the wheel, install the wheel in a fresh environment, and use it outside the checkout.
# The script makes its own environments, and can run while make env does.
check-wheel:
	$(PYTHON) scripts/check_wheel.py

# Try the files of deploy/ with the tools that are here; each trial says what it skips.
check-deploy: env
	PYTHON=$(CURDIR)/$(BIN)/python deploy/try/systemd.sh
	$(BIN)/python deploy/try/prometheus.py
	$(BIN)/python deploy/try/proxies.py
	PATH=$(CURDIR)/$(BIN):$$PATH deploy/try/slow_line.sh
	deploy/try/container.sh
	deploy/try/compose.sh
	deploy/try/helm.sh

clean:
	rm -rf .venv .venv-ray .venv-hf .venv-release .venv-oldest .venv-newest site runs build dist *.egg-info src/*.egg-info papers/build papers/dist papers/src/*.egg-info
