"""`locks doctor`: each finding, provoked on a separate server."""

import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from devtools.servers import RedisServer, find_server
from devtools.topologies import Cluster
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.engine import names
from django_redis_sync.operators import actions, doctor
from django_redis_sync.operators.doctor import Finding, permissions, servers
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import held_since, names_in_use
from tests.behaviour.both import MAX_WAIT, eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import locks, private_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

Start = Callable[..., str]


@pytest.fixture
def slow_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept slow replies, because their speed depends on the load of the machine."""
    monkeypatch.setattr(servers, "SLOW", MAX_WAIT)
    monkeypatch.setattr(servers, "TOO_SLOW", MAX_WAIT)


@pytest.fixture
def start(private: Start, slow_is_ok: None) -> Start:
    return private


def examine() -> dict[str, Finding]:
    return {finding.id: finding for finding in doctor.examine(using="private")}


def problems() -> set[str]:
    return {id for id, finding in examine().items() if finding.level != "ok"}


def test_doctor_has_no_finding_on_a_recommended_configuration(start: Start) -> None:
    start(appendonly=True)
    found = examine()
    assert {f.id for f in found.values() if f.level != "ok"} == set()
    assert {"latency", "clock", "acl", "version", "eviction", "persistence"} <= set(found)
    assert {"shared", "limits", "permanent", "marks"} <= set(found)
    assert not any(finding.remedy for finding in found.values())
    assert locks("doctor", using="private").endswith(f"0 errors, 0 warnings, {len(found)} ok\n")


def test_doctor_leaves_no_keys(start: Start) -> None:
    with redis.Redis.from_url(start()) as client:
        examine()
        assert client.dbsize() == 0


@pytest.mark.promise(27)
@pytest.mark.parametrize(
    ("facts", "levels"),
    [
        ({}, {}),
        ({"redis_version": "6.0.16"}, {"version": "error"}),
        ({"redis_version": "10.0.0"}, {}),
        ({"redis_version": "unstable"}, {}),
        ({"role": "slave"}, {"role": "error"}),
        ({"maxmemory": 1000, "used_memory": 900}, {}),
        ({"maxmemory": 1000, "used_memory": 901}, {"eviction": "warning"}),
        ({"maxmemory": 1000, "used_memory": 1000}, {"eviction": "error"}),
        ({"maxmemory_policy": "allkeys-lru"}, {"eviction": "warning"}),
        ({"maxmemory_policy": "volatile-ttl", "maxmemory": 1}, {"eviction": "error"}),
        ({"appendfsync": "no"}, {"persistence": "warning"}),
        ({"aof_last_write_status": "err", "appendfsync": "no"}, {"persistence": "error"}),
        ({"aof_enabled": 0}, {"persistence": "warning"}),
        ({"timeout": 299}, {"timeout": "warning"}),
        ({"timeout": 300}, {}),
        ({"cluster_slots_ok": 16383}, {"cluster": "warning"}),
        ({"cluster_state": "fail"}, {"cluster": "error"}),
    ],
    ids=str,
)
def test_doctor_rates_the_facts_of_a_server(facts: Any, levels: dict[str, str]) -> None:
    sound = {"redis_version": "7.0.15", "role": "master", "aof_enabled": 1, "used_memory": 1}
    state = {"cluster_state": "ok", "cluster_slots_ok": 16384, "cluster_known_nodes": 3}
    info = {key: str(value) for key, value in {**sound, **state, **facts}.items()}
    found = [*servers.judge(info, info.get), *servers.judge_cluster(info)]
    assert levels == {one.id: one.level for one in found if one.level != "ok"}
    assert {"version", "eviction", "persistence", "cluster"} <= {one.id for one in found}
    assert all(bool(one.remedy) == (one.level != "ok") for one in found)


@pytest.mark.parametrize(
    ("offset", "pause", "levels"),
    [
        (0.0, 0.0, {}),
        (0.9, 0.009, {}),
        (-1.1, 0.011, {"clock": "warning", "latency": "warning"}),
        (90.0, 0.11, {"clock": "warning", "latency": "error"}),
    ],
)
def test_doctor_measures_the_clock_and_the_round_trip(
    offset: float, pause: float, levels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        """A server whose clock is `offset` ahead, and whose replies take `pause`."""

        def command(self, word: str) -> Any:
            now[0] += pause
            return divmod(round((1.7e9 + offset) * 1e6), 1_000_000) if word == "TIME" else "PONG"

    now = [0.0]
    monkeypatch.setattr(servers, "clock", lambda: now[0])
    monkeypatch.setattr(servers, "time", types.SimpleNamespace(time=lambda: 1.7e9))
    node: Any = servers.Node("", Slow(), lambda key: True)  # type: ignore[arg-type]
    found = [one for id in ("clock", "latency") for one in servers.CHECKS[id](node)]
    assert levels == {one.id: one.level for one in found if one.level != "ok"}


def test_doctor_lists_the_nodes_of_a_finding_unless_all_nodes_agree() -> None:
    fine = Finding("eviction", "ok", "noeviction", "")
    full = Finding("eviction", "warning", "nearly full", "", "raise it")
    clock = Finding("clock", "ok", "agrees", "")
    found = doctor.combined([("a", [clock, fine]), ("b", [clock, full]), ("c", [clock, fine])])
    assert [
        ("clock", "ok", ()),
        ("eviction", "ok", ("a", "c")),
        ("eviction", "warning", ("b",)),
    ] == [(one.id, one.level, one.nodes) for one in found]


def test_doctor_reports_full_memory_and_not_an_unreachable_server(start: Start) -> None:
    url = start()
    with redis.Redis.from_url(url) as client:
        with Lock("a", using="private"):
            eventually(lambda: listed("a", using="private"))
        client.set("other", "x" * 2_000_000)
        client.config_set("maxmemory", "1mb")
        found = examine()["eviction"]
        assert ("error", "Memory is full") == (found.level, found.title.partition(":")[0])
        with pytest.raises(SystemExit) as ended:
            locks("doctor", using="private")
        assert 1 == ended.value.code
        with pytest.raises(CommandError) as caught:
            locks("pause", "a", using="private")
        assert "memory is full" in str(caught.value) and "running" not in str(caught.value)


@pytest.mark.parametrize("denied", ["blpop", "del", "zadd", "publish", "subscribe"])
def test_doctor_lists_a_denied_command(start: Start, denied: str, settings: Any) -> None:
    rules = f"~* &* +@all -{denied} nopass".split()
    url = start(user=["app", "on", *rules], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error"
    assert found.detail == f"Denied: {denied.upper()}."
    assert f"To grant them, run: ACL SETUSER <user> +{denied}" == found.remedy
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_doctor_lists_denied_keys(start: Start, settings: Any) -> None:
    start(user=["app", "on", "nopass", "~other:*", "&*", "+@all"], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error" and "EVALSHA" in found.detail
    prefix = settings.REDIS_SYNC["KEY_PREFIX"]
    assert found.remedy.endswith(f"SETUSER <user> ~{prefix}:*")


def test_doctor_lists_a_denied_channel(start: Start, settings: Any) -> None:
    start(user=["app", "on", "nopass", "~*", "resetchannels", "+@all"], login="app:x@")
    found = examine()["acl"]
    assert {"PUBLISH", "SUBSCRIBE"} == set(re.findall(r"[A-Z]{2,}", found.detail))
    assert found.remedy.endswith(f"SETUSER <user> &{settings.REDIS_SYNC['KEY_PREFIX']}:*")


def test_doctor_distinguishes_a_disabled_command_from_a_denied_command(start: Start) -> None:
    start(rename_command=["BLPOP", '""'])
    found = examine()["acl"]
    assert ("error", "Denied: BLPOP.") == (found.level, found.detail)
    assert found.remedy.startswith("The server has no BLPOP.")


def test_least_acl_permits_every_operation(start: Start, settings: Any) -> None:
    prefix = settings.REDIS_SYNC["KEY_PREFIX"]
    rules = permissions.rules(prefix).split()
    start(
        user=["app", "on", "nopass", "resetchannels", *rules],
        login="app:x@",
        database=3,
        appendonly=True,
    )
    assert problems() == set()
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


def test_doctor_warns_when_info_is_denied(start: Start) -> None:
    start(user=["app", "on", "nopass", "~*", "&*", "+@all", "-info"], login="app:x@")
    found = examine()
    assert found["info"].level == "warning" and "+info" in found["info"].remedy
    assert "version" not in found and found["acl"].level == "ok"


def test_doctor_warns_of_a_database_shared_with_another_alias(start: Start, settings: Any) -> None:
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


def test_doctor_mentions_foreign_keys_and_the_default_cache(start: Start, raw: redis.Redis) -> None:
    with redis.Redis.from_url(start()) as client:
        client.set("celery", 1)
        assert "another prefix" in examine()["shared"].detail
    found = {finding.id: finding for finding in doctor.examine()}
    assert "default cache" in found["shared"].detail


def test_doctor_lists_conflicting_limits_permanent_holders_and_pauses(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    with (
        Semaphore("clash", 2, using="private"),
        Semaphore("clash", 4, using="private"),
        Semaphore("paused", 4, key="7", using="private"),
        Lock("permanent lock", timeout=math.inf, using="private"),
    ):
        eventually(lambda: len(names_in_use(using="private")) == 3)
        actions.pause("paused", using="private")
        found = examine()
        monkeypatch.setattr(doctor, "CLASH_AGE", timedelta(0))
        assert "ok" == examine()["limits"].level
    texts = {"limits": "clash. ", "permanent": "hold permanent lock until", "marks": "paused. "}
    for id, text in texts.items():
        assert ("warning", True) == (found[id].level, bool(found[id].remedy))
        assert text in f"{found[id].detail} ", "the policy is listed, not its keys"


def test_doctor_reports_uwsgi_without_threads(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    assert "uwsgi" not in examine()
    uwsgi = types.SimpleNamespace(opt={"master": b"true"})
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    assert examine()["uwsgi"].level == "error"
    uwsgi.opt = {b"enable-threads": b"true"}
    assert examine()["uwsgi"].level == "ok"


def test_doctor_reports_a_cluster_that_is_down(start: Start) -> None:
    start(cluster_enabled=True)  # a single node without slots
    found = examine()
    assert (found["cluster"].level, found["cluster"].title) == ("error", "Cluster: fail")
    assert found["cluster"].detail == "1 node; 16384 slots without a node."
    assert found["names"].level == "error" and "slot" in found["names"].detail


# A Cluster of several nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if find_server() is None:
        pytest.skip("this test starts its own servers, and only REDIS_URL is available")
    with Cluster(config={"appendonly": True}) as started:
        yield started


@pytest.fixture
def in_settings(cluster: Cluster, settings: Any, slow_is_ok: None) -> Cluster:
    """The Cluster as the cache alias `cluster`."""
    settings.CACHES = {**settings.CACHES, "cluster": {**cluster.cache(), "KEY_PREFIX": "doctor"}}
    return cluster


def address(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.mark.deep
def test_doctor_reports_each_check_of_a_sound_cluster_once(in_settings: Cluster) -> None:
    found = doctor.examine(using="cluster")
    assert [f for f in found if f.level != "ok"] == []
    ids = [f.id for f in found if f.id != "latency"]  # reported for each node
    assert len(ids) == len(set(ids)) and not any(f.nodes for f in found if f.id != "latency")
    assert {"clock", "acl", "version", "eviction", "persistence", "cluster", "shared"} <= set(ids)
    (state,) = [f for f in found if f.id == "cluster"]
    assert (state.title, state.detail) == ("Cluster: ok", "3 nodes; 0 slots without a node.")


@pytest.mark.deep
def test_index_of_holders_works_on_a_cluster(
    in_settings: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "HOLDERS_INTERVAL", 0.2)
    with Lock("held", timeout=math.inf, using="cluster"), Lock("other", using="cluster"):
        eventually(lambda: ("held", None) in held_since(using="cluster"))
        lines = locks("status", "--sort", "oldest", using="cluster").splitlines()
        assert "held" in {line.split()[0] for line in lines[1:]}
        permanent = {one.id: one for one in doctor.examine(using="cluster")}["permanent"]
        assert "They hold held " in permanent.detail
    with Lock("other", using="cluster"):
        eventually(lambda: ("held", None) not in held_since(using="cluster"))


@pytest.mark.deep
def test_doctor_prints_the_address_of_a_faulty_node(in_settings: Cluster) -> None:
    _, faulty, other = in_settings.primaries
    with redis.Redis.from_url(faulty.url) as client, redis.Redis.from_url(other.url) as third:
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
    assert by_id["acl"].nodes == by_id["eviction"].nodes == (address(faulty),)
    assert by_id["acl"].detail == "Denied: ZADD."
    assert by_id["persistence"].nodes == tuple(sorted([address(faulty), address(other)]))
    assert f"    On {address(faulty)}.\n" in out.getvalue()


@pytest.mark.deep
def test_doctor_reports_a_node_that_is_down_and_examines_the_others(
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
def test_doctor_warns_only_of_aliases_of_the_same_cluster(
    in_settings: Cluster, settings: Any
) -> None:
    locmem = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {**settings.CACHES, "local": locmem}
    (shared,) = [f for f in doctor.examine(using="cluster") if f.id == "shared"]
    assert shared.level == "ok"
    # Another node of the same cluster, with another host name.
    url = in_settings.urls[2].replace("127.0.0.1", "localhost")
    again = {**in_settings.cache(), "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "again": again}
    (shared,) = [f for f in doctor.examine(using="cluster") if f.id == "shared"]
    assert shared.level == "warning" and "'again'" in shared.detail


def test_doctor_ignores_caches_without_redis(start: Start, settings: Any) -> None:
    start()
    settings.CACHES = {
        **settings.CACHES,
        "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "broken": {**settings.CACHES["private"], "LOCATION": "nonsense"},
        "gone": {"BACKEND": "no.such.Backend"},
    }
    assert examine()["shared"].level == "ok"


def test_doctor_raises_unavailable_when_redis_is_down(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "private": cache}
    with pytest.raises(Unavailable):
        examine()
