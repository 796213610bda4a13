"""A relay between store and generators, over real HTTP."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from weight_states import assert_same, damage, keys, model, moved

from composer_replication.diloco import open_store
from composer_replication.types.errors import ConfigError, ObjectStoreError
from composer_replication.weights import Relay, RelayClient, WeightPublisher, WeightPuller


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return open_store(tmp_path)


def test_many_generators_cost_the_store_one_read_of_each_object(store):
    publisher = WeightPublisher(store, shard_bytes=400)
    with Relay(store) as first, Relay(RelayClient(first.url)) as second:
        pullers = [WeightPuller(RelayClient(second.url)) for _ in range(5)]
        for state in (model(), moved(model())):
            made = publisher.publish(state)
            before = store.traffic.down
            threads = [threading.Thread(target=puller.pull) for puller in pullers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for puller in pullers:
                assert_same(puller.held.state, state)
                assert puller.held.bytes_down == made.bytes_up
            manifests = 5 * len(store.get(f"manifests/{made.version:010d}"))
            assert store.traffic.down - before == made.bytes_up + manifests + manifests // 5
        assert second.misses == first.misses == len(store.list("objects"))
        assert (second.hits, first.hits) == (4 * second.misses, 0)


def test_a_relay_hands_on_no_damaged_object_and_asks_for_a_whole_one(store):
    publisher = WeightPublisher(store)
    with Relay(store) as relay:
        puller = WeightPuller(RelayClient(relay.url))
        publisher.publish(model())
        puller.pull()
        publisher.publish(moved(model()))
        damage(store, keys(store, "patch")[0])
        assert puller.pull().behind == 1
        assert relay.damaged > 0
        assert store.list("wants") == ["wants/00000"]
        assert publisher.publish(moved(model(), 0.5)).full == 1
        assert_same(puller.pull().state, moved(model(), 0.5))


def test_who_asks_for_what_is_being_read_waits_for_it(store, monkeypatch):
    WeightPublisher(store).publish(model())
    (key,) = [key for key in keys(store, "full") if "/00000-" in key]
    read, together, reads = store.get, threading.Barrier(2), []

    def slowly(key):
        reads.append(key)
        with suppress(threading.BrokenBarrierError):
            together.wait(0.3)  # passes only if both read
        return read(key)

    monkeypatch.setattr(store, "get", slowly)
    with Relay(store) as relay:
        threads = [threading.Thread(target=relay.read, args=(key,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert reads == [key]


def test_memory_is_bounded(store):
    WeightPublisher(store, shard_bytes=200).publish(model())
    with Relay(store, cache_bytes=1000) as relay:
        for _ in range(2):
            assert_same(WeightPuller(RelayClient(relay.url)).pull().state, model())
        assert relay.misses > len(store.list("objects"))
        assert sum(map(len, relay._kept.values())) == relay._held <= 1000


def test_a_relay_serves_nothing_else(store):
    WeightPublisher(store).publish(model())
    store.put("secret", b"1")
    with Relay(store) as relay:
        client = RelayClient(relay.url)
        for key in ("secret", "manifests/../secret", "objects/0000000000/x", "wants/"):
            assert client.get(key) is None
        assert not client.create("manifests/0000000009", b"")
        assert not client.create("wants/00000", b"data")
        assert client.create("wants/00000", b"")
        assert not client.create("wants/00000", b"")
        assert client.list("objects") == []
    assert store.list("wants") == ["wants/00000"]
    assert len(store.list("manifests")) == 1


def test_a_relay_that_fails_is_named(store, monkeypatch):
    with Relay(store) as relay:
        monkeypatch.setattr(store, "list", lambda prefix: (_ for _ in ()).throw(ObjectStoreError("the bucket burns")))
        with pytest.raises(ObjectStoreError, match=rf"{relay.url}/manifests/: HTTP 502"):
            WeightPuller(RelayClient(relay.url)).pull()
        with pytest.raises(urllib.error.HTTPError) as found:
            urllib.request.urlopen(f"{relay.url}/manifests/")
        with found.value as answer:
            assert b"the bucket burns" in answer.read()
        with pytest.raises(ConfigError, match=r"no relay on 127\.0\.0\.1"):
            Relay(store, port=int(relay.url.rpartition(":")[2]))
    with pytest.raises(ObjectStoreError, match="see whether the relay runs"):
        WeightPuller(RelayClient(relay.url)).pull()
    with pytest.raises(ConfigError, match="'ftp://x' is not an address of a relay"):
        RelayClient("ftp://x")
