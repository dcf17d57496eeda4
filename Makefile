# make demo | make test: each works alone on a fresh machine. PYTHON chooses the interpreter (>= 3.11).
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install -qq --no-warn-script-location
STAMP  := .venv/.installed
CSRC   := $(wildcard gradc/csrc/* gradc/*/csrc/* gradc/bindings/*)

.PHONY: help venv demo test test-all check shadow sweep peers devices cuda patches fuzz fuzz-captured fuzz-python fuzz-types fuzz-steps hooks steps same-steps scripts races asan tsan bench world matrix wheel release types docs clean

help:
	@echo "make demo    train a small vision transformer; compare gradc with eager and torch.compile"
	@echo "make test    run the tests; of those that take long a part, each day another: DAY=739582 runs that day's again"
	@echo "make test-all   run the tests with every case (twice as long)"
	@echo "make check   lint, types, spelling, import direction"
	@echo "make shadow  the tests with shadow mode on: the first call of all they compile is verified (half an hour)"
	@echo "make sweep   torch's own op, module and function samples against eager, and what torch refuses; writes docs/sweep.md, docs/architectures.md (an hour)"
	@echo "make peers   what PyTorch's own tests check of autograd, under gradc three ways (minutes)"
	@echo "make devices tests/devices and all of tests/semantics on a simulated device, whose memory the host cannot read (minutes)"
	@echo "make cuda    all that needs a GPU, in 8 minutes, by a PYTHON that has torch for it and gradc; writes docs/cuda.md. SECONDS=480 PARTS=devices,sweep"
	@echo "make patches which patches the torch at hand still needs: the probe of each is run with the patch off (minutes)"
	@echo "make fuzz    random programs against eager (minutes); PROGRAMS=200 SEED=0; VARY=--vary: at several sizes; VARY=--chains: pointwise; VARY=--repeats: all twice; VARY=--straight: as steps"
	@echo "make fuzz-captured   the same with backward captured by compiled autograd; FORWARD=gradc_captured: over compiled forwards"
	@echo "make fuzz-python   random Python around tensor code against eager; PROGRAMS=200 SEED=0; 10,000 take an hour"
	@echo "make fuzz-types   random expressions about values of Python's own types against eager; PROGRAMS=200 SEED=0; 10,000 take six minutes"
	@echo "make fuzz-steps   random training steps, with all that happens between them, against eager; PROGRAMS=200 SEED=0"
	@echo "make hooks   100,000 steps with new hooks at each, backward captured: memory flat, nothing captured again"
	@echo "make steps   100,000 training steps, of a small compiled model and of a whole compiled step whose numbers change: memory flat, nothing compiled again"
	@echo "make same-steps   200 whole compiled steps of each benchmark's model: eager's, bit for bit (minutes)"
	@echo "make scripts   small scripts of kinds that gain little: 300 steps from the first call on beside eager's, settled steps; writes docs/scripts.md (half an hour)"
	@echo "make races   threads that make, compile, call and drop the same 2,000 new functions at once: the process lives (minutes)"
	@echo "make asan    build the extension with AddressSanitizer and UndefinedBehaviorSanitizer, run the native tests with it"
	@echo "make tsan    build it with ThreadSanitizer, run what several threads share; fails on a data race in gradc's own code"
	@echo "make world   train small models of unmodified libraries; writes docs/world.md (an hour); CASES=\"timm peft\": some of them"
	@echo "make matrix  tests, fuzzers, sweeps on torch 2.13, 2.14, 2.15, and on Python 3.12, each in an environment of its own (an hour each); VERSIONS=\"2.14.1\""
	@echo "make wheel   a wheel for the torch of the environment, and an sdist, in dist; installed and tried without a compiler (minutes)"
	@echo "make release what is published: sdist, a wheel for each torch and Python of RELEASES, an index page for pip, in dist (hours); URL=https://... of the repository"
	@echo "make types   what type checkers see of compiled functions and modules, by mypy and pyright"
	@echo "make docs    the pages of docs as a site, in build/site; a link that leads nowhere is an error (seconds; without torch)"
	@echo "make bench   time training steps, forward and backward alone and whole ones (hours; on an idle machine); THREADS=1; JAX=--jax"
	@echo "make venv    create .venv and install everything (the others do it by themselves)"
	@echo "make clean   remove what was built, .venv included"

venv: $(STAMP)

# torch comes first: the extension is built against it, and pip's build isolation would hide it.
$(STAMP): pyproject.toml setup.py $(CSRC)
	@echo "venv: a virtual environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PYTHON) -m tests.cpu_index > .venv/index
	@echo "venv: torch 2.13.0, $$(sed -n 2p .venv/index)"
	@$(PIP) $$(sed -n 1p .venv/index) torch==2.13.0 "setuptools>=77" wheel ninja
	@echo "venv: gradc, with its C++ extension (a minute of compiling on two cores), and what demo and tests need"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e ".[demo,dev]"
	@touch $@
	@$(BIN)/gradc env

demo: venv
	$(BIN)/gradc demo

DAY ?= today
test: venv
	$(BIN)/python -m pytest -n 2 -q --day $(DAY)

test-all: venv
	$(BIN)/python -m pytest -n 2 -q

PROSE := $(wildcard *.md) Makefile mkdocs.yml pyproject.toml setup.py docs gradc examples benchmarks tests
check: venv
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell $(PROSE)
	$(BIN)/python -m pytest -q tests/test_import_direction.py

shadow: venv
	$(BIN)/python -m tests.shadow

sweep: venv
	$(BIN)/python -m tests.sweep all
	$(BIN)/python -m tests.sweep errors
	$(BIN)/python -m tests.architectures

peers: venv
	$(BIN)/python -m tests.peers

devices: venv
	$(BIN)/python -m tests.devices

# No virtual environment of its own: that has torch for the CPU.
SECONDS ?= 480
PARTS   ?=
cuda:
	$(PYTHON) -m tests.cuda --write --seconds $(SECONDS) $(if $(PARTS),--parts $(PARTS))

PATCHES ?=
patches: venv
	$(BIN)/python -m tests.patches $(PATCHES)

PROGRAMS ?= 200
SEED     ?= 0
fuzz: venv
	$(BIN)/python -m tests.fuzz --programs $(PROGRAMS) --seed $(SEED) $(VARY)

FORWARD ?= captured
fuzz-captured: venv
	$(BIN)/python -m tests.fuzz --programs $(PROGRAMS) --seed $(SEED) --compiler $(FORWARD) $(VARY)

fuzz-python: venv
	$(BIN)/python -m tests.fuzz_python --programs $(PROGRAMS) --seed $(SEED)

fuzz-types: venv
	$(BIN)/python -m tests.fuzz_types --programs $(PROGRAMS) --seed $(SEED)

fuzz-steps: venv
	$(BIN)/python -m tests.fuzz_steps --programs $(PROGRAMS) --seed $(SEED)

hooks: venv
	$(BIN)/python -m benchmarks.hooks_every_step

steps: venv
	$(BIN)/python -m benchmarks.many_steps
	$(BIN)/python -m benchmarks.whole_steps

same-steps: venv
	$(BIN)/python -m benchmarks.same_steps

scripts: venv
	$(BIN)/python -m benchmarks.never_slower --page docs/scripts.md

races: venv
	$(BIN)/python -m tests.compile_races --functions 2000

# A copy of the tree with an extension of its own. Leaks are not looked for: Python and torch keep much until the end. Nor is
# memory flat: the sanitizer keeps what was freed.
ASAN       := build/asan
ASAN_TESTS ?= tests/executor tests/tape tests/analysis tests/backward tests/nodes tests/region tests/capture tests/symbolic tests/compiled_autograd/test_cache_misses.py tests/compiled_autograd/test_run_segments.py $(wildcard tests/semantics/test_*.py)
asan: venv
	GRADC_SANITIZE=address PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py -q build --build-lib $(ASAN) --build-temp $(ASAN)-objects
	cp -r tests benchmarks docs pyproject.toml README.md $(ASAN)
	cp -r --parents gradc/executor/*/csrc $(ASAN)
	cd $(ASAN) && LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONPATH=. \
	  $(CURDIR)/$(BIN)/python -m pytest -q -p no:cacheprovider --capture=sys -k "not thousand_steps and not memory_is_flat" $(ASAN_TESTS)

# Python, torch and OpenMP are not instrumented: what they read and write is passed over, while their locks count.
TSAN       := build/tsan
TSAN_TESTS ?= tests/nodes/test_threads.py tests/semantics/test_threads.py
tsan: venv
	GRADC_SANITIZE=thread PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py -q build --build-lib $(TSAN) --build-temp $(TSAN)-objects
	cp -r tests benchmarks docs pyproject.toml README.md $(TSAN)
	cd $(TSAN) && LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libtsan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so.6)" \
	  TSAN_OPTIONS=ignore_noninstrumented_modules=1:exitcode=66:suppressions=tests/tsan.txt PYTHONPATH=. \
	  $(CURDIR)/$(BIN)/python -m pytest -q -p no:cacheprovider --capture=sys -k "not data_loader" $(TSAN_TESTS)

THREADS ?= 1
bench: venv
	$(BIN)/gradc bench --threads $(THREADS) --out docs
	$(BIN)/gradc bench step --threads $(THREADS) --torch --auto $(JAX) --out docs

# The libraries stand in a virtual environment of their own, which looks into .venv for the rest: no second torch, no change of the first.
WORLD := .venv-world
CASES ?=
$(WORLD)/.installed: pyproject.toml $(STAMP)
	@test -x $(WORLD)/bin/python || $(PYTHON) -m venv $(WORLD)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(WORLD)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_gradc.pth"
	@echo "world: the libraries that the cases use"
	@echo "torch==2.13.0" > $(WORLD)/constraint.txt
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["world"], sep="\n")' > $(WORLD)/world.txt
	@$(WORLD)/bin/python -m pip install -qq --no-warn-script-location -c $(WORLD)/constraint.txt -r $(WORLD)/world.txt
	@touch $@

world: $(WORLD)/.installed
	PYTHONPATH=$(CURDIR) $(WORLD)/bin/python -m tests.world --jobs 2 $(if $(CASES),--only $(CASES))
	PYTHONPATH=$(CURDIR) $(WORLD)/bin/python -m pytest -q tests/world tests/test_launchers.py

VERSIONS ?=
matrix:
	$(PYTHON) -m tests.matrix $(VERSIONS)

# The wheel is compiled from what the sdist holds, in a folder of pip's: nothing of an earlier build gets into it.
wheel: venv
	rm -rf dist
	GRADC_NO_EXTENSION=1 $(BIN)/python setup.py -q sdist
	GRADC_WHEEL=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps --no-cache-dir -w dist dist/gradc-*.tar.gz
	$(BIN)/python -m tests.try_wheel dist/gradc-*.whl

# What `gradc bench` is to a figure, this is to a package: docs/releasing.md. Each wheel is compiled for the torch of an environment of its own.
RELEASES ?= 2.13.0 2.14.1 2.15.0
PYTHONS  ?= python3.11 python3.12 python3.13
URL      ?=
release:
	$(PYTHON) -m tests.release --torch $(RELEASES) --python $(PYTHONS) --url "$(URL)"

types: venv
	$(PIP) pyright
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python tests/types_kept.py

# Needs neither torch nor gradc: a virtual environment of its own. The theme's advertisement of its successor is left out.
DOCS := .venv-docs
$(DOCS)/.installed: pyproject.toml
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/docs.txt
	@$(DOCS)/bin/python -m pip install -qq -r $(DOCS)/docs.txt
	@touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "docs: build/site/index.html"

clean:
	rm -rf .venv .venv-docs .venv-world build dist gradc.egg-info gradc/_C*.so demo-out .mypy_cache .pytest_cache .ruff_cache
