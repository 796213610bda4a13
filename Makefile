# The commands of the house. Every target works from a fresh clone: it makes or refreshes .venv first.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
# four workers: tests wait for boxes and servers, and two workers leave a fifth of two cores idle
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 4 --dist worksteal
COVERAGE := --cov --cov-report=term:skip-covered
ROOMS := $(sort $(foreach file,$(wildcard tests/*/test_*.py),$(word 2,$(subst /, ,$(file)))))
ROOM ?=
CHECK_ROOM = $(if $(filter-out $(ROOMS),$(ROOM)),echo "no such room: $(filter-out $(ROOMS),$(ROOM)); the rooms are: $(ROOMS)" >&2; exit 2)

.PHONY: help env quickstart test test-all test-slow ci-nightly test-substrates chain one-gradient monarch smoke torchao oracles trl-own-tests triton faces replaysim corpus languages traces docker verl remote serverless serverless-sky serving diloco lint format type imports docs figures extras bench bench-loss bench-hint bench-detectors bench-foreign bench-memory bench-tasks coverage-world mixed-run bench-task-sets bench-trust bench-plan bench-examples bench-learner bench-channels bench-reattempts bench-gate bench-prm bench-sandbox bench-sandbox-filter bench-agreement bench-replaysim bench-replay one-run bench-substrates bench-serving bench-flow bench-mesh bench-diloco bench-diloco-rl bench-diloco-loss bench-diloco-stall bench-weights gpu-check soak fuzz-grader faults-replay faults-diloco attack report-check arms clean

help: ## List every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

env: ## Make or refresh .venv (PYTHON=... chooses the interpreter)
	@scripts/bootstrap.sh

quickstart: env ## Run the whole recipe for real, small: tasks, rollouts, three channels, report
	@$(BIN)/composer quickstart

test: env ## Run the inner loop: every test not marked slow, without coverage (ROOM=hints: only those in tests/hints)
	@$(CHECK_ROOM)
	@echo "the tests marked slow are left to make test-all"
	@$(PYTEST) -m "not slow" $(addprefix tests/,$(ROOM))

test-all: env ## Run every test and report coverage
	@$(PYTEST) $(COVERAGE)

MINUTES ?=
test-slow: env ## Run the tests that make test leaves out, without those marked nightly (ROOM as for make test; MINUTES=10: as many as fit)
	@$(CHECK_ROOM)
	@$(PYTEST) -m "slow and not nightly" $(if $(MINUTES),--minutes $(MINUTES)) $(addprefix tests/,$(ROOM))

ci-nightly: env ## Run what .ci/run leaves out: coverage, and every test environment of noxfile.py (two hours)
	@$(MAKE) test-all
	@$(BIN)/nox

test-substrates: env ## Test every substrate, in an environment of its own for each (ten minutes to install); ends with a line of JSON
	@$(BIN)/python scripts/test_substrates.py

chain: env ## Take one small model through every stage of a run file, each stage killed and resumed (five minutes)
	@$(PYTEST) tests/trainer/test_chain.py

one-gradient: env ## Compare the gradients of verl, Ray and Monarch with the local one, in environments of their own
	@$(BIN)/nox --session verl mesh -- -k gradient

monarch: env ## Test the actor mesh on Monarch, in an environment of its own
	@$(BIN)/nox --session monarch

smoke: env ## Install every extra alone into an empty environment and use it once (needs the package index)
	@rm -f docs/figures/tested_versions.json
	@$(BIN)/nox --session smoke -- --write ../../docs/figures/tested_versions.json
	@$(BIN)/python scripts/versions.py

torchao: env ## AdamW with moments of 8 bits beside torch's own, in an environment of its own
	@$(BIN)/nox --session torchao

oracles: env ## Compare the losses with TRL's and liger's, in an environment of their own
	@$(BIN)/nox --session oracles

TRL_SRC ?=
trl-own-tests: env ## Run TRL's own GRPO tests with its trainer and with ours, and compare them (TRL_SRC=checkout of TRL; half an hour)
	@TRL_SRC="$(abspath $(TRL_SRC))" $(BIN)/nox --session trl-own-tests -- --write docs/figures/trl_own_tests.json

triton: env ## Test the Triton kernels on a CPU, in an environment of their own
	@$(BIN)/nox --session "triton(newest)"

faces: env ## Test the faces beside OpenEnv, verifiers, Gymnasium, TRL and Harbor, an environment for each
	@$(BIN)/nox --session openenv verifiers gymnasium trl harbor

replaysim: env ## Test the backends of replaysim beside data-juicer and Ray, in an environment of their own
	@$(BIN)/nox --session replaysim -- -m "not nightly"

corpus: env ## Read data sets as text for pre-training, in an environment of its own
	@$(BIN)/nox --session corpus

LANGUAGE ?= *
languages: env ## Build and grade tasks in other languages (LANGUAGE=go, java, javascript, rust or mixed), with the machine's JDK and Rust
	@$(BIN)/nox --session languages -- $(wildcard tests_substrates/languages/test_$(LANGUAGE)_*.py)

traces: env ## Test ATIF files with the package atif, in an environment of its own
	@$(BIN)/nox --session traces

docker: env ## Test the Docker sandbox on the daemon that `docker` is set up for
	@$(BIN)/python -m pytest tests_substrates/docker

verl: env ## Test the substrate verl: its engine, and a run of main_ppo on Ray and the CPU, in an environment of its own
	@$(BIN)/nox --session verl

remote: env ## Test the remote sandbox through a SWE-ReX server, in an environment of its own
	@$(BIN)/nox --session remote

serverless: env ## Test the executors of Modal and Hugging Face Jobs with the vendors' clients, in an environment of their own
	@$(BIN)/nox --session serverless

serverless-sky: env ## Test the executor of SkyPilot with its client, in an environment of its own (330 MB)
	@$(BIN)/nox --session serverless-sky

serving: env ## Test sampling and weight loading with vLLM on the CPU, in an environment of its own (3.5 GB)
	@$(BIN)/nox --session serving

diloco: env ## Test rounds of replicas through a real S3 server, in an environment of its own
	@$(BIN)/nox --session diloco

lint: env ## Check style: ruff rules and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: env ## Rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

type: env ## Check types: mypy in strict mode; of benchmarks, examples and substrate tests the names and calls
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file=scripts/names.ini

imports: env ## Check the layers: imports only go down
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_cycles.py

docs: env ## Execute the examples of README.md and docs/
	@$(BIN)/python scripts/run_docs.py

figures: env ## Draw the pictures of docs/ anew
	@$(BIN)/python scripts/figures.py

extras: env ## Resolve every optional extra beside the core's torch (needs the package index)
	@$(BIN)/python scripts/check_extras.py

bench: env ## Run the short benchmarks; each ends with one line of JSON
	@set -e; for bench in benchmarks/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench; done

bench-loss: env ## Measure the fused losses beside TRL's and liger's, in an environment of their own
	@$(BIN)/nox --session bench-loss -- --write docs/figures/loss.json

bench-hint: env ## Measure what the hint channel adds to a step, in time and memory
	@$(BIN)/python benchmarks/hint.py --write docs/figures/hint.json

bench-detectors: env ## Measure precision, recall and cost of the error detectors on labelled transcripts
	@$(BIN)/python benchmarks/detectors.py

bench-foreign: env ## Measure the detectors on published logs of other agents, labelled by hand (LOGS=folder of checkouts)
	@$(BIN)/python benchmarks/foreign_logs.py --logs $(LOGS) --write docs/figures/foreign_logs.json

bench-memory: env ## Measure the peak memory of the loss from 1,024 to 65,536 tokens, beside whole logits
	@$(BIN)/python benchmarks/memory.py

bench-tasks: env ## Measure validated tasks per minute and core on public packages, and draw it (needs the package index)
	@$(BIN)/python benchmarks/tasks.py --write docs/figures/tasks.json
	@$(BIN)/python scripts/figures.py

BEFORE ?=
coverage-world: env ## Build the most used packages of each language, a few tasks of each: built or why not, and at what cost (resumable, hours)
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/coverage_world.py --work runs/coverage-world --write docs/figures/coverage_world.json

mixed-run: env ## Build the tasks of ten projects in five languages, and train on them for three steps: resumable, half an hour
	@$(BIN)/python benchmarks/mixed_run.py --write docs/figures/mixed_run.json

bench-task-sets: env ## List, load and choose from a set of 10,000 tasks: CPU-seconds, memory and bytes on disk (ten minutes)
	@$(BIN)/python benchmarks/task_sets.py --write docs/figures/task_sets.json

bench-trust: env ## Measure what rewards rest on, on ten public packages, with a forger and honest variants (BEFORE=checkout of older code: timed)
	@$(BIN)/python benchmarks/trust.py --write docs/figures/trust.json --work runs/bench-trust $(if $(BEFORE),--before $(BEFORE),--untimed)

bench-plan: env ## Compare the memory that a dry run plans with what fresh processes take, on 16 settings (an hour)
	@$(BIN)/python benchmarks/plan.py --write docs/figures/plan.json

bench-examples: env ## Plan the memory of the run files in examples/training on a CPU, by published architectures
	@$(BIN)/python benchmarks/example_plans.py --write docs/figures/example_plans.json

bench-learner: env runs/quickstart ## Compare updates with those of TRL's trainer, and one pass over shared prefixes with padded rows, in an environment of its own
	@$(BIN)/nox --session bench-learner -- --run runs/quickstart --write docs/figures/learner.json

runs/quickstart: | env
	@$(BIN)/composer quickstart

bench-channels: env ## Measure what each channel does to pass@1, alone and beside GRPO, and beside what could replace it: resumable, an hour and a quarter
	@$(BIN)/python benchmarks/channels.py --write docs/figures/channels.json

bench-reattempts: env ## Train on hinted re-attempts, beside hints alone and beside as many rollouts without hints (15 minutes)
	@$(BIN)/python benchmarks/reattempts.py --write docs/figures/reattempts.json

bench-gate: env ## Measure what a gate on teachers saves and loses in a synthetic world with known truth, and draw it
	@$(BIN)/python benchmarks/gate.py --write docs/figures/gate.json
	@$(BIN)/python scripts/figures.py

bench-prm: env ## Train a process reward model on planted faults, measure it on held-out tasks, and draw it
	@$(BIN)/python benchmarks/prm.py --write docs/figures/prm.json
	@$(BIN)/python scripts/figures.py

bench-sandbox: env ## Measure the start of a box beside a cold bubblewrap with an overlay, and graded rollouts per second
	@$(BIN)/python benchmarks/sandbox.py --write docs/figures/sandbox.json

bench-sandbox-filter: env ## Measure what the filter of system calls and the keyring add to the start of a box, with and without in turn
	@$(BIN)/python benchmarks/sandbox_filter.py --write docs/figures/sandbox_filter.json

bench-agreement: env ## Measure how often the same action is seen to be the same, and what that does to teachers' votes
	@$(BIN)/python benchmarks/agreement.py

bench-replaysim: env ## Measure the normalising of 100,000 pairs beside data-juicer's stock executor, in an environment of its own
	@$(BIN)/nox --session bench-replaysim

bench-replay: env ## Measure trace replay: the pool's overhead, its ledger as a cache, a gate's curve, agreement (the last two small)
	@$(BIN)/python benchmarks/replay.py

SUBSTRATE ?= local trl verl ray monarch
ARM ?= three_channels
STEPS ?= 36
one-run: env ## Train the quickstart's tasks through a substrate (SUBSTRATE=trl; ARM=, STEPS=): pass@1, what each channel did
	@$(if $(filter-out local,$(SUBSTRATE)),$(BIN)/nox --install-only --session $(filter-out local,$(subst ray,mesh,$(SUBSTRATE))))
	@$(BIN)/python benchmarks/one_run.py $(SUBSTRATE) --arm $(ARM) --steps $(STEPS)

bench-substrates: env ## Measure the same steps on every substrate, in an environment of its own for each; ends with a line of JSON
	@$(BIN)/nox --install-only --session trl verl mesh monarch
	@$(BIN)/python benchmarks/substrates.py

bench-serving: env ## Measure tokens per second of the engine in this process and of vLLM, in an environment of its own
	@$(BIN)/nox --session bench-serving

bench-flow: env ## Measure how long 64 rollouts take over a server, beside the longest of them alone and beside lock-step batches
	@$(BIN)/python benchmarks/flow.py

bench-mesh: env ## Measure a mesh: asynchronous beside synchronous, and recovery from kill -9, in an environment of its own
	@$(BIN)/nox --session bench-mesh

bench-diloco: env ## Measure the bytes that replicas send through a bucket, counted at the server, beside the protocol's law
	@$(BIN)/python benchmarks/diloco.py

bench-diloco-rl: env ## Train the quickstart's recipe in four replicas, in one, and data-parallel, on three seeds, in an environment of its own (an hour)
	@$(BIN)/nox --session bench-diloco-rl

bench-diloco-loss: env ## Measure the loss and traffic of replicas beside data parallel, by codec, in an environment of its own (20 minutes)
	@$(BIN)/nox --session bench-diloco-loss -- --write docs/figures/diloco_loss.json
	@$(BIN)/python scripts/figures.py

bench-diloco-stall: env ## Measure how long replicas wait for their rounds, with overlap and without, in an environment of its own
	@$(BIN)/nox --session bench-diloco-stall -- --write docs/figures/diloco_stall.json

bench-weights: env ## Measure bytes and time of new weights from trainer to generator at RL learning rates, and compare the bits
	@$(BIN)/python benchmarks/weights.py

FIGURES ?= docs/figures
gpu-check: env ## Run everything that needs a GPU, or the same small on the CPU: kernels, learner, engines (FIGURES=folder of its JSON)
	@$(BIN)/python benchmarks/gpu_check.py --write $(FIGURES)

soak: env ## Run 1,000 rollouts of agents that crash, hang and flood, and count what they leave behind
	@$(BIN)/python tests/tools/soak.py

COUNT ?= 10000
SEED ?= 0
fuzz-grader: env ## Put 10,000 hostile workspaces and tool calls through the grader (COUNT=, SEED=), and count what goes wrong
	@$(BIN)/python tests/tools/fuzz_grader.py --count $(COUNT) --seed $(SEED) --write docs/figures/fuzz_grader.json

faults-replay: env ## Kill a replay ten times behind a failing proxy and compare ledger and bill, in an environment of its own
	@$(BIN)/nox --session faults-replay

faults-diloco: env ## Kill, delay and deceive replicas at every step of a round on a real S3 server, in an environment of its own
	@$(BIN)/nox --session faults-diloco

attack: env ## Try every known attack on grading, against this grader and a naive one
	@$(BIN)/python tests/attack/table.py --write docs/figures/attack.json

report-check: env ## Check a report in headless Chromium (RUN=runs/NAME, or a made-up run)
	@$(BIN)/python tests/browser/check_report.py $(RUN)

arms: env ## Run the three-seed experiment: four settings of every arm (an hour and a half)
	@$(BIN)/python benchmarks/arms.py

clean: ## Remove caches and build outputs (.venv and runs/ stay)
	@rm -rf .nox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage build dist
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
