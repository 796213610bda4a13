"""The store: the same answers from a folder, from memory and from S3, and one clear error for whatever goes wrong."""

from __future__ import annotations

import threading
import traceback
from functools import partial

import pytest
import torch
from in_threads import together, vector
from s3_server import Handler, S3Server, environment

from composer_replication.diloco import ObjectStoreAllReduce, open_store
from composer_replication.diloco.store import check_conditional_writes
from composer_replication.types.errors import ConfigError, ObjectStoreError


@pytest.fixture
def serve(monkeypatch):
    """`serve(*faults)` is a server; the environment points to it until the test ends."""
    servers = []

    def start(*faults):
        server = S3Server(*faults)
        server.__enter__()
        servers.append(server)
        for name, value in environment(server.url).items():
            monkeypatch.setenv(name, value)
        return server

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def store(request, tmp_path, serve):
    if request.param == "s3":
        serve()
        return open_store("s3://bucket/some/run")
    return open_store(
        {"folder": tmp_path, "file": tmp_path.as_uri(), "memory": f"memory://{tmp_path.name}/deep/er"}[request.param]
    )


def test_objects_are_written_read_listed_and_removed(store):
    assert store.get("a/b") is None
    assert store.list() == []
    store.put("a/b", b"0123456789")
    store.put("a/b", b"abcdefghij")
    assert store.create("a/c", b"")
    assert not store.create("a/c", b"other")
    assert (store.get("a/b"), store.get("a/c")) == (b"abcdefghij", b"")
    assert store.get_range("a/b", 2, 3) == b"cde"
    assert store.get_range("a/b", 8, 30) == b"ij"
    assert store.get_range("a/b", 30, 3) is None
    assert store.get_range("a/none", 0, 3) is None
    assert store.get_many([("a/b", 8, 30), ("a/none", 0, 3), ("a/b", 30, 3), ("a/b", 2, 3)]) == [b"ij", None, None, b"cde"]
    assert store.get_many([]) == []
    assert store.list() == store.list("a") == ["a/b", "a/c"]
    assert store.list("none") == []
    assert store.exists("a/b")
    assert not store.exists("a/none")
    store.delete("a/b", "a/none")
    assert store.at("a").list() == ["c"]
    check_conditional_writes(store)
    assert store.list() == ["a/c"]


def test_traffic_is_counted_in_every_view(store):
    view = store.at("x").counting()
    view.put("key", b"12345")
    view.get("key")
    view.get("none")
    assert (view.traffic.up, view.traffic.down, view.traffic.requests) == (5, 5, 3)
    view.get_many([("key", 0, 2), ("key", 3, 9), ("none", 0, 1)])
    assert (view.traffic.up, view.traffic.down, view.traffic.requests) == (5, 9, 6)
    assert (store.traffic.up, store.traffic.down, store.traffic.requests) == (5, 9, 6)
    assert store.where("key").endswith("key")


def test_several_objects_are_read_at_once(serve, monkeypatch):
    serve()
    store = open_store("s3://bucket/run", timeout_s=600)
    for key in "abc":
        store.put(key, key.encode())
    all_there, answer = threading.Barrier(3), Handler.do_GET

    def answer_three(self):
        all_there.wait(60)
        answer(self)

    monkeypatch.setattr(Handler, "do_GET", answer_three)
    assert store.get_many([(key, 0, 1) for key in "cab"]) == [b"c", b"a", b"b"]


def test_replicas_train_through_s3_and_the_server_counts_what_they_count(serve):
    server = serve()
    size = 50_000

    def replica(rank):
        reduce = ObjectStoreAllReduce("s3://bucket/run", rank=rank, world_size=3, timeout_s=600)
        up, down = reduce.store.traffic.up, reduce.store.traffic.down
        mean = vector(size, rank)
        outcome = reduce.start([mean], "model").wait()
        assert (outcome.bytes_up, outcome.bytes_down) == (reduce.store.traffic.up - up, reduce.store.traffic.down - down)
        return reduce.store.traffic, mean

    found = together(*(partial(replica, rank) for rank in range(3)))
    assert all(torch.equal(mean, found[0][1]) for _, mean in found)
    assert sum(traffic.up for traffic, _ in found) == server.bucket.up
    assert sum(traffic.down for traffic, _ in found) == server.bucket.down


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("careless", "ignores conditional writes.*\n.*fix: use a store that honours `If-None-Match"),
        ("blind", "does not list an object that has been written"),
        ("skewed", "RequestTimeTooSkewed.*\n.*fix: set this machine's clock"),
        ("forbidden", "self-test/.* cannot be .*\n.*fix: check the credentials"),
        ("full", "self-test/.* cannot be .*507.*\n.*fix: free space"),
        ("broken", "self-test/.* cannot be .*500.*\n.*fix: see whether the store is reachable"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_told_at_the_start(serve, fault, said):
    serve(fault)
    timeout_s = 2.0 if fault in ("full", "broken") else 600.0  # the client repeats what the server may take later
    with pytest.raises(ObjectStoreError, match=said):
        ObjectStoreAllReduce("s3://bucket/run", rank=0, world_size=2, timeout_s=timeout_s)


def test_a_server_that_is_not_there_is_told(serve):
    serve().__exit__()
    store = open_store("s3://bucket", timeout_s=0.5)
    with pytest.raises(ObjectStoreError, match="see whether the store is reachable"):
        store.get("key")
    with pytest.raises(ObjectStoreError, match="bucket/some/other cannot be read"):
        store.get_many([("some/other", 0, 1)])


def test_a_bucket_that_fills_up_stops_the_round_and_not_the_others_hashes(serve):
    serve("forbidden@8")
    members = [ObjectStoreAllReduce("s3://bucket/run", rank=rank, world_size=2, timeout_s=600) for rank in range(2)]
    found = together(*(partial(one.allreduce, vector(100, one.rank), "model") for one in members))
    assert all(isinstance(one, ObjectStoreError) for one in found) or torch.equal(*found)


@pytest.mark.parametrize("uri", ["ftp://host/x", "s4://bucket", "s3://"])
def test_an_address_of_another_kind_is_refused(uri):
    with pytest.raises(ConfigError):
        open_store(uri)


@pytest.mark.parametrize(
    ("uri", "fix"),
    [
        ("s3://KEY:SECRET@bucket/p", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("s3://KEY:SEC/RET@bucket/p", "AWS_SECRET_ACCESS_KEY"),
        ("s3://SECRET@bucket", "AWS_SECRET_ACCESS_KEY"),
        ("gs://KEY:SECRET@bucket/p", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://KEY:SECRET@container/p", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://container/p?sv=KEY&sig=SECRET", "AZURE_STORAGE_SAS_KEY"),
        ("https://KEY.blob.core.windows.net/container?sig=SECRET", "s3"),
        ("https://KEY:SEC/RET@host/container", "s3"),
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(uri, fix):
    with pytest.raises(ConfigError, match=fix) as error:
        open_store(uri)
    said = "".join(traceback.format_exception(error.value, limit=0))
    assert not any(secret in said for secret in ("KEY:", "SEC/", "SECRET@", "=SECRET", "RET@"))


def test_an_at_in_a_prefix_is_no_credential():
    assert open_store("s3://bucket/runs@home:1/p").uri == "s3://bucket/runs@home:1/p"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ObjectStoreError, match="name a folder that can be written"):
        open_store(tmp_path / "file" / "store")


def test_more_than_one_put_takes_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("composer_replication.diloco.store.LARGEST_PUT", 3)
    with pytest.raises(ObjectStoreError, match="would have 4 bytes, and one conditional put takes 3"):
        open_store(tmp_path).create("key", b"1234")
