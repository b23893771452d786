# `make train` and `make test` set everything up from a clean clone: Python 3.11, make, a C++ compiler and pip are enough.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
DEV_EXTRAS := dev,box2d,mujoco,atari,minatar,envpool,offline,video,tune,export

# Bytecode is written even if the environment forbids it: without it, every process compiles all sources again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: notebooks help train test test-fast test-ray test-slurm test-trackers coverage lint docs wheel bench reproduce clean

help:            ## show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

.venv/.core: pyproject.toml constraints.txt src/rl_training/core/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing rl-training into .venv (a minute or two the first time)"
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) -e .
	@touch $@

.venv/.dev: .venv/.core
	$(PIP) swig
	$(PIP) -e '.[$(DEV_EXTRAS)]'
	@touch $@

train: .venv/.core   ## train DQN on CartPole-v1, evaluate it and show the result
	$(BIN)/rl-training train --config configs/dqn/cartpole.yaml

test: .venv/.dev   ## run the tests, on all cores
	$(PYTEST)

test-fast: .venv/.dev   ## run the tests that neither compile, start processes nor train for long
	HYPOTHESIS_PROFILE=fast $(PYTEST) -m 'not (compile or process or learning or slow or ray or slurm)'

.ray/.ready: pyproject.toml constraints.txt
	test -x .ray/bin/python || $(PYTHON) -m venv .ray
	$(subst $(BIN),.ray/bin,$(PIP)) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(subst $(BIN),.ray/bin,$(PIP)) -e '.[dev,ray]'
	@touch $@

test-ray: .ray/.ready   ## run the tests that need Ray, in a virtual environment of their own
	.ray/bin/python -m pytest -m ray $$(grep -rl --include='*.py' 'pytest.mark.ray' tests)

test-trackers: .venv/.dev   ## check MLflow, W&B and Trackio against their real packages, in virtual environments of their own
	$(BIN)/python -m benchmarks trackers

test-slurm: .venv/.dev   ## run the tests that need SLURM, with a cluster on this machine (benchmarks/slurm_cluster.py)
	$(BIN)/python -m pytest -m slurm tests/launching

coverage: .venv/.dev   ## run the tests and measure which lines and branches they cover
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: .venv/.dev   ## ruff and mypy --strict
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/mypy

.venv/.docs: .venv/.core
	$(PIP) -e '.[docs]'
	@touch $@

docs: .venv/.docs   ## build the site into build/site and check its links; warnings are errors
	rm -rf build/site
	$(BIN)/python -m sphinx -c docs -E -q -W --keep-going -d build/doctrees . build/site
	$(BIN)/python docs/check_site.py build/site

.venv/.notebooks: .venv/.dev
	$(PIP) -e '.[notebooks]'
	@touch $@

notebooks: .venv/.notebooks   ## execute the notebooks of examples/notebooks again and keep their outputs
	$(BIN)/python docs/run_notebooks.py

wheel: .venv/.dev   ## build the wheel and try it in an empty environment; `make wheel PYTHONS="python3.11 python3.12"`
	$(BIN)/python -m benchmarks wheel $(foreach python,$(PYTHONS),--python $(python))

bench: .venv/.dev   ## score and speed runs; `make bench ARGS="speed dqn"`
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: .venv/.dev   ## run a row of the scores again and compare; `make reproduce ROW=sac-pendulum SEEDS=0-1`
	$(BIN)/python -m benchmarks reproduce $(ROW) $(if $(SEEDS),--seeds $(SEEDS))

clean:   ## remove what set-up and tests made (runs/ stays)
	rm -rf .venv .peers .ray .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build
