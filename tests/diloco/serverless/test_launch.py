"""What may be launched, and the command line that comes of it."""

from __future__ import annotations

import functools
import json

import pytest
import replicas

from composer_replication.diloco.serverless.launch import ENTRYPOINT, plan, resolve
from composer_replication.types.errors import ConfigError

URI = "s3://bucket/run"


def planned(entrypoint, n: int = 2, timeout: float = 60.0, **arguments):
    return plan(n, entrypoint, {"rendezvous_uri": URI, **arguments}, timeout)


def local() -> None:
    def inner() -> None:
        pass

    planned(inner)


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        (replicas.report, "report"),
        (replicas.Nested.inner, "Nested.inner"),
        ("replicas:report", "report"),
        ("replicas:Nested.inner", "Nested.inner"),
    ],
)
def test_functions_travel_by_name(entrypoint, name) -> None:
    launch = planned(entrypoint, lr=0.1)
    assert (launch.trainer_module, launch.trainer_fn, json.loads(launch.trainer_kwargs)) == ("replicas", name, {"lr": 0.1})
    assert callable(resolve(launch.trainer_module, launch.trainer_fn))


def test_the_command_line_is_the_one_that_is_documented() -> None:
    launch = planned(ENTRYPOINT, trainer_module="replicas", trainer_fn="report", trainer_kwargs={"x": [1, None]}, rank_env="R")
    words = launch.arguments()
    assert words[:2] == ["-m", ENTRYPOINT]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options.pop("--job")
    assert options == {
        "--rendezvous": URI,
        "--world-size": "2",
        "--trainer-module": "replicas",
        "--trainer-fn": "report",
        "--trainer-kwargs-json": '{"x": [1, null]}',
        "--rank-env": "R",
        "--timeout-s": "60",
    }


def test_without_a_trainer_replicas_meet() -> None:
    launch = planned(ENTRYPOINT, rank_env="REPLICA_RANK")
    assert (launch.trainer_module, launch.trainer_fn) == ("composer_replication.diloco.serverless.barrier_job", "meet")


def test_every_launch_has_a_place_of_its_own() -> None:
    assert planned("a:b").job != planned("a:b").job


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: planned(lambda: None), "has no name that a replica could import"),
        (local, "has no name that a replica could import"),
        (lambda: planned(functools.partial(replicas.report, x=1)), "has no name that a replica could import"),
        (lambda: planned(replicas.Nested().method), "replicas:Nested.method is something else than the entrypoint"),
        (lambda: planned("replicas"), "entrypoint 'replicas' names no function"),
        (lambda: planned("replicas:report()"), "names no function"),
        (lambda: planned("a:b", n=0), "n_replicas is 0"),
        (lambda: planned("a:b", n=True), "n_replicas is True"),
        (lambda: planned("a:b", timeout=0), "timeout is 0"),
        (lambda: planned("a:b", timeout=float("inf")), "timeout is inf"),
        (lambda: plan(1, "a:b", {}, 1), "entrypoint_args has no rendezvous_uri"),
        (lambda: planned("a:b", rendezvous_uri="memory://x"), "no other process shares this one's memory"),
        (lambda: planned("a:b", world_size=3), "world_size 3, and n_replicas is 2"),
        (lambda: planned("a:b", rank_env="MY-RANK"), "rank_env 'MY-RANK' is not a name"),
        (lambda: planned("a:b", f=object()), "argument f of the entrypoint is not plain JSON"),
        (lambda: planned("a:b", f={1: 2}), "argument f of the entrypoint is not plain JSON"),
        (lambda: planned("a:b", text="x" * 70000), "arguments of the replicas take 70"),
        (lambda: planned(ENTRYPOINT, lr=1), "entrypoint_args has lr, which"),
        (lambda: planned(ENTRYPOINT, trainer_module="m"), "one of trainer_module and trainer_fn"),
        (lambda: planned(ENTRYPOINT, trainer_kwargs=[1]), "trainer_kwargs is not a mapping"),
    ],
)
def test_what_cannot_be_launched_is_refused(make, told) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        make()
    assert caught.value.fix
    assert "\n" not in caught.value.message


def test_a_module_that_lacks_something_itself_is_another_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "lacks_something.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        resolve("lacks_something", "run")
