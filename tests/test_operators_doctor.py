"""`locks doctor`: each finding, provoked on a server of its own."""

import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from devtools.servers import RedisServer, find_server
from devtools.topologies import Cluster
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.operators import actions, doctor
from django_redis_sync.operators.doctor import (
    Finding,
    findings,
    neighbours,
    permissions,
    servers,
)
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.protocol.plans import Failure
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

Start = Callable[..., str]


@pytest.fixture
def start(new_server: Callable[..., RedisServer], settings: Any) -> Start:
    """Starts a server with a configuration, as the cache alias `private`."""

    def begin(*, login: str = "", database: int = 0, **config: Any) -> str:
        words = {name.replace("_", "-"): value for name, value in config.items()}
        server = new_server(config=words)
        url = server.url.replace("//", f"//{login}").replace("/0", f"/{database}")
        cache = {**settings.CACHES["default"], "LOCATION": url}
        settings.CACHES = {**settings.CACHES, "private": cache}
        return server.url

    return begin


def examine() -> dict[str, Finding]:
    return {finding.id: finding for finding in doctor.examine(using="private")}


def odd() -> set[str]:
    return {id for id, finding in examine().items() if finding.level != "ok"}


def test_a_server_set_up_as_advised_has_no_finding(start: Start) -> None:
    start(appendonly=True)
    found = examine()
    assert {f.id for f in found.values() if f.level != "ok"} == set()
    assert {"latency", "clock", "acl", "version", "eviction", "persistence"} <= set(found)
    assert {"shared", "limits", "permanent", "marks"} <= set(found)
    assert not any(finding.remedy for finding in found.values())
    out = StringIO()
    call_command("locks", "doctor", using="private", stdout=out)
    assert out.getvalue().endswith(f"0 errors, 0 warnings, {len(found)} ok\n")


def test_the_examination_leaves_nothing_behind(start: Start) -> None:
    with redis.Redis.from_url(start()) as client:
        examine()
        assert client.dbsize() == 0


def test_an_evicting_policy_is_an_error_when_memory_is_limited(start: Start) -> None:
    url = start(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    found = examine()["eviction"]
    assert found.level == "error" and "noeviction" in found.remedy
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("locks", "doctor", using="private", stdout=out)
    assert ended.value.code == 1 and found.remedy in out.getvalue()
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", 0)
        assert examine()["eviction"].level == "warning"
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.02))
        found = examine()["eviction"]
        assert found.level == "warning" and "nearly full" in found.title


def test_memory_that_is_full_is_an_error_and_not_a_server_that_is_down(start: Start) -> None:
    url = start()
    with redis.Redis.from_url(url) as client:
        with Lock("a", using="private"):
            eventually(lambda: listed("a", using="private"))
        client.set("other", "x" * 2_000_000)
        client.config_set("maxmemory", "1mb")
        found = examine()["eviction"]
        assert ("error", "Memory is full") == (found.level, found.title.partition(":")[0])
        with pytest.raises(SystemExit) as ended:
            call_command("locks", "doctor", using="private", stdout=StringIO())
        assert 1 == ended.value.code
        with pytest.raises(CommandError) as caught:
            call_command("locks", "pause", "a", using="private", stdout=StringIO())
        assert "memory is full" in str(caught.value) and "running" not in str(caught.value)


def test_a_file_that_is_written_when_the_system_likes_is_said(start: Start) -> None:
    start(appendonly=True, appendfsync="no")
    found = examine()["persistence"]
    assert ("warning", True) == (found.level, "appendfsync is no" in found.detail)


def test_without_persistence_a_restart_forgets(start: Start) -> None:
    url = start()
    found = examine()["persistence"]
    assert (found.level, found.title) == ("warning", "Persistence: none")
    assert "appendonly yes" in found.remedy
    with redis.Redis.from_url(url) as client:
        client.config_set("save", "3600 1")
        assert examine()["persistence"].title == "Persistence: no AOF"


def test_an_old_server_and_a_replica_are_errors(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    real = servers._info

    def old(server: Any) -> Any:
        info = {**(real(server) or {}), "redis_version": "6.0.16", "role": "slave"}
        info.pop("valkey_version", None)
        return info

    monkeypatch.setattr(servers, "_info", old)
    found = examine()
    assert (found["version"].level, found["role"].level) == ("error", "error")
    assert "6.0.16" in found["version"].title


def test_a_clock_that_is_off_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    real = servers.time.time
    monkeypatch.setattr(servers, "time", types.SimpleNamespace(time=lambda: real() - 90))
    found = examine()["clock"]
    assert found.level == "warning" and "+90.0 s" in found.title


def test_slow_answers_are_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.setattr(servers, "SLOW", 0.0)
    assert examine()["latency"].level == "warning"
    monkeypatch.setattr(servers, "TOO_SLOW", 0.0)
    assert examine()["latency"].level == "error"


@pytest.mark.parametrize("denied", ["blpop", "hincrby", "zadd", "publish", "subscribe", "time"])
def test_a_command_that_is_not_allowed_is_named(start: Start, denied: str, settings: Any) -> None:
    rules = f"~* &* +@all -{denied} nopass".split()
    url = start(user=["app", "on", *rules], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error"
    assert found.detail == f"Refused: {denied.upper()}."
    assert f"Give it what it lacks: ACL SETUSER <user> +{denied}" == found.remedy
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_keys_that_are_not_allowed_are_noticed(start: Start, settings: Any) -> None:
    start(user=["app", "on", "nopass", "~other:*", "&*", "+@all"], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error" and "EVALSHA" in found.detail
    prefix = settings.REDIS_SYNC["KEY_PREFIX"]
    assert found.remedy.endswith(f"SETUSER <user> ~{prefix}:*")


def test_a_channel_that_is_not_allowed_is_noticed(start: Start, settings: Any) -> None:
    start(user=["app", "on", "nopass", "~*", "resetchannels", "+@all"], login="app:x@")
    found = examine()["acl"]
    assert {"PUBLISH", "SUBSCRIBE"} == set(re.findall(r"[A-Z]{2,}", found.detail))
    assert found.remedy.endswith(f"SETUSER <user> &{settings.REDIS_SYNC['KEY_PREFIX']}:*")


def test_a_command_that_is_disabled_is_told_from_one_that_is_not_allowed(start: Start) -> None:
    start(rename_command=["BLPOP", '""'])
    found = examine()["acl"]
    assert ("error", "Refused: BLPOP.") == (found.level, found.detail)
    assert found.remedy.startswith("Not there at all: BLPOP.")


def test_the_least_acl_is_enough_for_everything(start: Start, settings: Any) -> None:
    prefix = settings.REDIS_SYNC["KEY_PREFIX"]
    rules = permissions.rules(prefix).split()
    start(
        user=["app", "on", "nopass", "resetchannels", *rules],
        login="app:x@",
        database=3,
        appendonly=True,
    )
    assert odd() == set()
    with Semaphore("s", 2, using="private"), Semaphore("s", 2, key="k", using="private") as lease:
        eventually(lambda: ("s", "k") in names_in_use(using="private"))
        assert Semaphore("s", 1, using="private").acquire(blocking_timeout=0.2) is None
        actions.pause("s", using="private")
        actions.resume("s", using="private")
        histories([("s", None)], using="private")
        lease.renew()
    import asyncio

    async def wait() -> None:
        lock = Lock("async", using="private")
        async with lock:
            assert await Lock("async", using="private").aacquire(blocking_timeout=0.2) is None

    asyncio.run(wait())


def test_without_info_it_says_what_it_can_not_see(start: Start) -> None:
    start(user=["app", "on", "nopass", "~*", "&*", "+@all", "-info"], login="app:x@")
    found = examine()
    assert found["info"].level == "warning" and "+info" in found["info"].remedy
    assert "version" not in found and found["acl"].level == "ok"


def test_a_database_shared_with_another_alias_is_said(start: Start, settings: Any) -> None:
    url = start()
    assert examine()["shared"].level == "ok"
    settings.CACHES = {**settings.CACHES, "pages": {**settings.CACHES["private"]}}
    found = examine()["shared"]
    assert found.level == "warning" and "'pages'" in found.detail
    # Another database of the same server is fine, however its address is written.
    other = url.replace("127.0.0.1", "localhost").replace("/0", "/1")
    pages = {**settings.CACHES["private"], "LOCATION": other}
    settings.CACHES = {**settings.CACHES, "pages": pages}
    assert examine()["shared"].level == "ok"
    same = url.replace("127.0.0.1", "localhost") + "?socket_timeout=3"
    settings.CACHES = {**settings.CACHES, "pages": {**pages, "LOCATION": same}}
    assert examine()["shared"].level == "warning"


def test_other_tenants_and_the_default_cache_are_said(start: Start, raw: redis.Redis) -> None:
    with redis.Redis.from_url(start()) as client:
        client.set("celery", 1)
        assert "none of ours" in examine()["shared"].detail
    found = {finding.id: finding for finding in doctor.examine()}
    assert "default cache" in found["shared"].detail


def test_names_whose_callers_disagree_and_permanent_holders_are_named(start: Start) -> None:
    start()
    with (
        Semaphore("clash", 2, using="private"),
        Semaphore("clash", 4, using="private"),
        Lock("for ever", timeout=math.inf, using="private"),
    ):
        eventually(lambda: len(names_in_use(using="private")) == 2)
        actions.pause("paused", using="private")
        found = examine()
    for id, name in (("limits", "clash"), ("permanent", "for ever"), ("marks", "paused")):
        assert found[id].level == "warning" and name in found[id].detail and found[id].remedy


def test_uwsgi_without_threads_is_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    assert "uwsgi" not in examine()
    uwsgi = types.SimpleNamespace(opt={"master": b"true"})
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    assert examine()["uwsgi"].level == "error"
    uwsgi.opt = {b"enable-threads": b"true"}
    assert examine()["uwsgi"].level == "ok"


def test_a_cluster_tells_how_it_is(start: Start) -> None:
    # A single node without slots is a cluster that is down.
    start(cluster_enabled=True)
    found = examine()
    assert (found["cluster"].level, found["cluster"].title) == ("error", "Cluster: fail")
    assert found["cluster"].detail == "1 node; 16384 slots without a node."
    assert found["names"].level == "error" and "slot" in found["names"].detail


# A Cluster of several nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if find_server() is None:
        pytest.skip("REDIS_URL is all there is, and this test starts servers of its own")
    with Cluster(config={"appendonly": True}) as started:
        yield started


@pytest.fixture
def in_settings(cluster: Cluster, settings: Any) -> Cluster:
    """The Cluster as the cache alias `cluster`."""
    settings.CACHES = {**settings.CACHES, "cluster": {**cluster.cache(), "KEY_PREFIX": "doctor"}}
    return cluster


def address(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.mark.deep
def test_of_a_sound_cluster_each_thing_is_said_once(in_settings: Cluster) -> None:
    found = doctor.examine(using="cluster")
    assert [f for f in found if f.level != "ok"] == []
    ids = [f.id for f in found if f.id != "latency"]  # each node has its own
    assert len(ids) == len(set(ids)) and not any(f.nodes for f in found if f.id != "latency")
    assert {"clock", "acl", "version", "eviction", "persistence", "cluster", "shared"} <= set(ids)
    (state,) = [f for f in found if f.id == "cluster"]
    assert (state.title, state.detail) == ("Cluster: ok", "3 nodes; 0 slots without a node.")


@pytest.mark.deep
def test_what_is_wrong_with_one_node_is_said_with_its_address(in_settings: Cluster) -> None:
    _, odd, other = in_settings.primaries
    with redis.Redis.from_url(odd.url) as client, redis.Redis.from_url(other.url) as third:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.acl_setuser("default", enabled=True, commands=["-zadd"])
        for one in (client, third):
            one.config_set("appendonly", "no")
        try:
            wrong = [f for f in doctor.examine(using="cluster") if f.level != "ok"]
            out = StringIO()
            with pytest.raises(SystemExit):
                call_command("locks", "doctor", using="cluster", stdout=out)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.acl_setuser("default", enabled=True, commands=["+@all"])
            for one in (client, third):
                one.config_set("appendonly", "yes")
    by_id = {f.id: f for f in wrong}
    assert set(by_id) == {"acl", "eviction", "persistence"}
    assert by_id["acl"].nodes == by_id["eviction"].nodes == (address(odd),)
    assert by_id["acl"].detail == "Refused: ZADD."
    assert by_id["persistence"].nodes == tuple(sorted([address(odd), address(other)]))
    assert f"    On {address(odd)}.\n" in out.getvalue()


@pytest.mark.deep
def test_a_node_that_is_down_is_a_finding_while_others_answer(
    in_settings: Cluster, settings: Any
) -> None:
    last = in_settings.primaries[-1]
    doctor.examine(using="cluster")  # so that the nodes are known
    last.pause()
    try:
        found = doctor.examine(using="cluster")
    finally:
        last.resume()
    (silent,) = [f for f in found if f.id == "node"]
    assert (silent.level, silent.nodes) == ("error", (address(last),))
    eviction = [f for f in found if f.id == "eviction"]
    assert [f.level for f in eviction] == ["ok"]
    assert set(eviction[0].nodes) == {address(s) for s in in_settings.primaries[:2]}


@pytest.mark.deep
def test_two_aliases_of_one_cluster_share_it_and_others_do_not(
    in_settings: Cluster, settings: Any
) -> None:
    locmem = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {**settings.CACHES, "local": locmem}
    (shared,) = [f for f in doctor.examine(using="cluster") if f.id == "shared"]
    assert shared.level == "ok"
    # Another node of it, under another name.
    again = {
        **in_settings.cache(),
        "LOCATION": in_settings.urls[2].replace("127.0.0.1", "localhost"),
    }
    settings.CACHES = {**settings.CACHES, "again": again}
    (shared,) = [f for f in doctor.examine(using="cluster") if f.id == "shared"]
    assert shared.level == "warning" and "'again'" in shared.detail


def test_what_several_nodes_say_is_told_once() -> None:
    fine = Finding("eviction", "ok", "noeviction", "")
    full = Finding("eviction", "warning", "nearly full", "", "raise it")
    clock = Finding("clock", "ok", "agrees", "")
    said = findings.together([("a", [clock, fine]), ("b", [clock, full]), ("c", [clock, fine])])
    assert [(f.id, f.level, f.nodes) for f in said] == [
        ("clock", "ok", ()),
        ("eviction", "ok", ("a", "c")),
        ("eviction", "warning", ("b",)),
    ]
    assert [f.where for f in said] == ["", "On a, c.", "On b."]


def test_a_cache_that_is_no_redis_shares_nothing(start: Start, settings: Any) -> None:
    start()
    settings.CACHES = {
        **settings.CACHES,
        "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "broken": {**settings.CACHES["private"], "LOCATION": "nonsense"},
        "gone": {"BACKEND": "no.such.Backend"},
    }
    assert examine()["shared"].level == "ok"


def test_redis_down_is_unavailable(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "private": cache}
    with pytest.raises(Unavailable):
        examine()


@pytest.mark.parametrize(
    "error", [Failure(ConnectionError("gone"), 0.0, "lost"), Unavailable("gone")]
)
def test_redis_that_goes_away_meanwhile_is_unavailable(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_away(alias: str) -> Any:
        raise error

    monkeypatch.setattr(servers, "LOOKS", {})
    monkeypatch.setattr(neighbours, "LOOKS", {"names": goes_away})
    with pytest.raises(Unavailable, match="gone"):
        doctor.examine()


def test_each_command_that_is_needed_can_be_tried() -> None:
    tried = set(permissions._HARMLESS) | set(permissions._APART)
    assert set(permissions.needed()) - tried == set()
