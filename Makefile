# Each target does all of its own set-up, in a virtual environment under .venv that belongs to
# one interpreter and one flavour of the build. So `make test` and `make test PYTHON=python3.14t`,
# the plain build and the sanitizers' never overwrite each other.
#
#   PYTHON   the interpreter: a name or a path. python3.14t is found or built by tools/python314t
#   ARGS     more arguments for pytest, the demo or the benchmarks: make test ARGS="-k chan -x"
#   ROUNDS   how long each stress test runs

PYTHON ?= python3
ARGS ?=
# Set by the targets below: empty, tiny, asan, tsan, lint or bench.
FLAVOUR ?=

MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# --- The interpreter and its environment ---------------------------------------------------------

ifneq ($(filter-out clean help,$(MAKECMDGOALS)),)
ifeq ($(PYTHON),python3.14t)
override PYTHON := $(shell tools/python314t)
$(if $(PYTHON),,$(error there is no python3.14t and none could be built, see above))
endif
ABI := $(shell $(PYTHON) -c 'import sys; v = sys.version_info; \
	v >= (3, 11) or sys.exit("gofer needs Python 3.11 or newer, this is %d.%d" % v[:2]); \
	print("%d.%d.%d%s" % (v[:3] + (sys.abiflags,)))')
$(if $(ABI),,$(error PYTHON=$(PYTHON) cannot be used))
endif

VENV := .venv/$(ABI)$(addprefix -,$(FLAVOUR))
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
# meson and ninja come from the environment, whatever the system has.
IN_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
FREE_THREADED := $(findstring t,$(ABI))

# Directories too: their time changes when a file comes or goes.
SOURCES := meson.build meson.options pyproject.toml \
	$(shell find src -name __pycache__ -prune -o \( -type d -o -name '*.[ch]' -o -name '*.py' \
		-o -name '*.pyi' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name py.typed -o -name meson.build \) -print)

# Asserts are compiled into every flavour but the plain one.
# So that one compilation serves the linter and the documentation.
SETUP_lint := -Dwerror=true
SETUP_tiny := -Dtiny=true -Db_ndebug=false
SETUP_asan := -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false
SETUP_tsan := -Dbuildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false

# An environment whose interpreter is gone is made anew.
$(VENV)/.made: $(if $(shell $(PY) -c 'print(1)' 2>&1 | grep -x 1),,FORCE)
	@echo "== $(VENV): new environment"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual\
	 environments (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@$(PIP) install 'pip>=25.1' # the first that knows dependency groups
	@touch $@

# A dependency group of pyproject.toml, installed.
$(VENV)/.group-%: pyproject.toml $(VENV)/.made
	@echo "== $(VENV): installing the $* group"
	@$(PIP) install --group $*
	@touch $@

# gofer, installed. The build directory stays, so only what changed is compiled.
$(VENV)/.installed: $(SOURCES) $(VENV)/.group-build
	@echo "== $(VENV): building gofer"
	@$(IN_VENV) $(PIP) install --no-build-isolation --no-deps --force-reinstall \
		-Cbuild-dir=$(VENV)/build $(addprefix -Csetup-args=,$(SETUP_$(FLAVOUR))) .
	@touch $@

FORCE:

# --- Targets -------------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.installed ## see it work
	$(PY) -m gofer demo $(ARGS)

PYTEST = $(RUNNER) GOFER_STRESS_ROUNDS=$(ROUNDS) $(PY) -m pytest $(ARGS)

.PHONY: test
test: ROUNDS ?= 300
# Dask in the plain environment only: it is no test of the flavours.
test: $(if $(FLAVOUR),,$(VENV)/.group-test-dask)
test: $(VENV)/.installed $(VENV)/.group-test ## run all tests, the stress tests for a short while
	$(PYTEST)

.PHONY: stress
stress: ROUNDS ?= 1000000
stress: $(VENV)/.installed $(VENV)/.group-test ## run the stress tests for long: ROUNDS=1000000
	$(PYTEST) -o faulthandler_timeout=3600 tests/stress

.PHONY: tiny
tiny: ## run all tests with rings and caches of 4 slots and asserts on
	@$(MAKE) FLAVOUR=tiny test

.PHONY: retake
retake: ## run all tests while every P in user code is taken away every 50 us
	@GOFER_TEST_SYSMON_US=50 $(MAKE) test

.PHONY: asan
asan: ## run all tests under AddressSanitizer and UBSan
	@$(MAKE) FLAVOUR=asan sanitized

.PHONY: tsan
tsan: ## run the stress tests under ThreadSanitizer, on a CPython that is built with it
	@TSAN_OPTIONS=report_bugs=0 $(FIXED_ADDRESSES) $(MAKE) FLAVOUR=tsan \
		PYTHON=$$(tools/python314t --tsan) sanitized

.PHONY: lint
lint: ## ruff, mypy, clang-format, a compilation that takes warnings for errors, the docs
	@$(MAKE) FLAVOUR=lint linted documented

.PHONY: docs
docs: ## build the documentation into build/docs; warnings and broken links are errors
	@$(MAKE) FLAVOUR=lint documented

.PHONY: format
format: ## let ruff and clang-format rewrite the sources
	@$(MAKE) FLAVOUR=lint formatted

.PHONY: bench
bench: ## measure gofer beside its peers
	@$(MAKE) FLAVOUR=bench benched

.PHONY: clean
clean: ## remove all that make has made
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.14t picks an interpreter, ARGS=... goes to pytest, ROUNDS=n to the stress tests."

# --- What the flavoured targets do, in their environment -------------------------------------------

# For ASan the interpreter is not instrumented, so the sanitizer's runtime must be there before it. TSan would
# take every reference count of such an interpreter for a race, and has one of its own.
PRELOAD = $(shell $(CC) -print-file-name=libasan.so)
# CPython's allocator would hide small blocks from the sanitizer. The free-threaded build has no
# other allocator than its own.
MALLOC = $(if $(FREE_THREADED),,PYTHONMALLOC=malloc)
# Leaks are not looked for: the interpreter leaves thousands of blocks to the end of the process.
# The tests count gofer's own objects instead.
RUNNER_asan = env LD_PRELOAD=$(PRELOAD) $(MALLOC) ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
RUNNER_tsan = env TSAN_OPTIONS=suppressions=$(VENV)/tsan.supp:history_size=7:die_after_fork=0
# TSan cannot place its shadow memory in an address space that is randomised too widely.
FIXED_ADDRESSES = $(shell setarch -R true 2>&1 && echo setarch -R)
# TSan slows everything down some fifteen times.
TESTS_tsan = tests/stress
ROUNDS_asan = 10000
ROUNDS_tsan = 1000

.PHONY: sanitized
sanitized: ROUNDS ?= $(ROUNDS_$(FLAVOUR))
sanitized: RUNNER = $(RUNNER_$(FLAVOUR))
sanitized: $(VENV)/.installed $(VENV)/.group-test
	@test -e "$(PRELOAD)" || { echo "$(CC) has no sanitizer runtime: the sanitizer targets need gcc\
	 and its libasan and libtsan (CC=gcc)" >&2; exit 1; }
	@cat tools/tsan.supp $$(dirname $(PYTHON))/../tsan.supp >$(VENV)/tsan.supp 2>/dev/null || true
	@# Not by file descriptor: what pytest has captured dies with a process that the sanitizer ends.
	$(PYTEST) --capture=sys -o faulthandler_timeout=1200 $(TESTS_$(FLAVOUR))

C_FILES = $(wildcard src/core/*.[ch])

.PHONY: linted
linted: $(VENV)/.group-lint $(VENV)/.installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)

# The reference is made from the docstrings of the installed package.
.PHONY: documented
documented: $(VENV)/.group-docs $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	$(PY) tools/docs/check.py build/docs

.PHONY: formatted
formatted: $(VENV)/.group-lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(C_FILES)

.PHONY: benched
benched: $(VENV)/.installed $(VENV)/.group-bench \
	$(if $(FREE_THREADED),$(VENV)/.group-bench-free-threaded)
	$(PY) -m benchmarks $(ARGS)
