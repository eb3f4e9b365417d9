# Everything a newcomer needs: `make install`, `make demo`, `make test`. Plain pip in .venv; nothing else is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# What pip would do, with all cores. Exit code 1: some packages hold files that are no Python, which pip skips, too.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib >/dev/null || test $$? = 1
# Whatever Python starts here, bare `dg` and `dagster` too, imports `orchestration` first, which switches telemetry off.
QUIET := echo 'import orchestration' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/quiet.pth"
export PATH := $(CURDIR)/$(BIN):$(PATH)
TORCH_CPU := https://download.pytorch.org/whl/cpu
REACHABLE = $(PYTHON) -c "import urllib.request as u; u.urlopen('$(TORCH_CPU)/torch/', timeout=5)" 2>/dev/null

# The tests of a tier. `make test` leaves out full-size scripts, kills and foreign tools; `make test-all` runs them, too.
TIER ?= not full and not long
# Where `make test` makes its temporary folder: in memory with 4 GB of room, where no test waits for a disk.
MEMORY := /dev/shm
MEMORY_KB = $(shell test -w $(MEMORY) && df -Pk $(MEMORY) | awk 'NR == 2 { print $$4 }')
TEMPORARY = $(shell test "$(MEMORY_KB)" -gt 4000000 2>/dev/null && echo $(MEMORY) || echo "$${TMPDIR:-/tmp}")
ORCHESTRATION_TESTS := $(addprefix tests/,assets freshet orchestration)
# Experiments train, too, and so both processes have the same work.
TRAINING_TESTS := tests/experiments $(wildcard $(addprefix tests/model_code/,dsi encoding evaluation hierarchy incdsi lexical mlr queries retrieval stages training))

.PHONY: install demo test test-all test-long unit-tests training-tests orchestration-tests end-to-end-tests ui repro docs lint clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	freshet demo

# Two processes of one thread each: more threads than cores would make every one of them slower. Whichever process is
# done takes the next group. In this order, longest first, both end at about the same time.
test: $(VENV)/.installed-for-tests
	folder=$$(mktemp -d "$(TEMPORARY)/freshet.XXXXXX") && chmod 755 "$$folder" && { \
		TMPDIR="$$folder" OMP_NUM_THREADS=1 $(MAKE) --no-print-directory --jobs 2 --keep-going \
			orchestration-tests unit-tests end-to-end-tests training-tests; \
		status=$$?; rm -rf "$$folder"; exit $$status; }

test-all:
	$(MAKE) --no-print-directory TIER="not long" test

unit-tests:
	python -m pytest -m "$(TIER)" $(addprefix --ignore ,tests/end_to_end $(ORCHESTRATION_TESTS) $(TRAINING_TESTS))

training-tests:
	python -m pytest -m "$(TIER)" $(TRAINING_TESTS)

orchestration-tests:
	python -m pytest -m "$(TIER)" $(ORCHESTRATION_TESTS)

end-to-end-tests:
	python -m pytest -m "$(TIER)" tests/end_to_end

# What chance finds: the same tests as above, with far more of it.
test-long: $(VENV)/.installed-for-tests
	OMP_NUM_THREADS=1 python -m pytest -m long

ui: $(VENV)/.installed
	freshet ui

repro: $(VENV)/.installed
	test -f corpus.lock.json || freshet ingest
	dvc repro

# The pages lie where their links expect them, the site in .site/html.
docs: $(VENV)/.installed-for-tests
	rm -rf .site && mkdir -p .site/pages
	git ls-files -z '*.md' 'docs/images' 'experiments/*.png' 'experiments/*.json' 'experiments/*.toml' 'experiments/*.yaml' 'benchmarks/*.json' | xargs -0 cp --parents --target-directory .site/pages
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

lint: $(VENV)/.installed-for-tests
	ruff check .
	ruff format --check .

# Torch goes first: other packages' ranges would take a build with several GB of CUDA libraries.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch==2.13.0 $$($(REACHABLE) && echo --extra-index-url $(TORCH_CPU))
	$(PIP_INSTALL) --editable '.[full]'
	$(QUIET)
	$(COMPILE)
	touch $@

$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[test]'
	$(COMPILE)
	touch $@

clean:
	rm -rf $(VENV)
