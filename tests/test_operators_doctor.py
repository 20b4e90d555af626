"""`manage.py locks doctor`: each finding, provoked on a separate server."""

import asyncio
import math
import re
import sys
import time
import types
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer, find_server
from devtools.topologies import Cluster
from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators import doctor
from django_redis_sync.operators.doctor import permissions, servers
from tests.behaviour.both import MAX_WAIT, eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import act, failed, locks, private_server  # noqa: F401 - a fixture

pytestmark = [pytest.mark.usefixtures("fresh_keeper"), pytest.mark.promise(27)]

Start = Callable[..., str]


@pytest.fixture
def slow_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept slow replies, because their speed depends on the load of the machine."""
    monkeypatch.setattr(servers, "SLOW", MAX_WAIT)
    monkeypatch.setattr(servers, "TOO_SLOW", MAX_WAIT)


@pytest.fixture
def start(private: Start, slow_is_ok: None) -> Start:
    return private


def examine(using: str = "private") -> dict[str, doctor.Finding]:
    return {finding.id: finding for finding in doctor.examine(using=using)}


def problems(using: str = "private") -> dict[str, str]:
    return {id: one.level for id, one in examine(using).items() if one.level != "ok"}


@pytest.fixture
def crowd(start: Start, settings: Any) -> Iterator[redis.Redis]:
    """A server with more recent names than the doctor examines."""
    with redis.Redis.from_url(start()) as client:
        now = client.time()[0] * 1000
        names = {f"recent:{n:03}": now + 60_000 + n for n in range(150)}
        client.zadd(f"{settings.PREFIX}:names", names)
        yield client


# A server


def test_doctor_has_no_problem_on_a_recommended_server_and_leaves_no_keys(start: Start) -> None:
    url = start(appendonly=True)
    found = examine()
    assert {} == problems()
    assert {"latency", "clock", "acl", "version", "eviction", "persistence"} <= set(found)
    assert {"shared", "limits", "permanent", "marks"} <= set(found)
    assert not any(finding.remedy for finding in found.values())
    assert locks("doctor", using="private").endswith(f"0 errors, 0 warnings, {len(found)} ok\n")
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


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


@pytest.mark.parametrize(("offset", "level"), [(0, "ok"), (-4, "warning"), (90, "warning")])
def test_doctor_compares_the_clocks(
    offset: float, level: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    clock = time.time
    monkeypatch.setattr("time.time", lambda: clock() - offset)
    assert level == examine()["clock"].level


def test_doctor_rates_the_round_trip(private: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    private()
    for slow, too_slow, level in ((9, 9, "ok"), (0, 9, "warning"), (0, 0, "error")):
        monkeypatch.setattr(servers, "SLOW", slow)
        monkeypatch.setattr(servers, "TOO_SLOW", too_slow)
        assert level == examine()["latency"].level


def test_doctor_exits_with_an_error_for_errors_only(
    crowd: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This server has no persistence, and there are many names.
    assert "0 errors, 1 warning, " in (text := locks("doctor", using="private"))
    assert text.endswith(" ok, 1 in part\n")
    monkeypatch.setattr(servers, "TOO_SLOW", 0.0)
    with pytest.raises(SystemExit) as ended:
        locks("doctor", using="private", stdout=(out := StringIO()))
    assert (1, True) == (ended.value.code, "1 error, 1 warning" in out.getvalue())


def test_doctor_reports_full_memory_and_not_an_unreachable_server(start: Start) -> None:
    with redis.Redis.from_url(start()) as client:
        with Lock("a", using="private"):
            eventually(lambda: listed("a", using="private"))
        client.set("other", "x" * 2_000_000)
        client.config_set("maxmemory", "1mb")
        found = examine()["eviction"]
        assert ("error", "Memory is full") == (found.level, found.title.partition(":")[0])
        _, error = failed("pause", "a", using="private")
        assert "memory is full" in error and "running" not in error


# Permissions


@pytest.mark.parametrize(
    ("rules", "denied", "remedy"),
    [
        ("~* &* +@all -blpop", "BLPOP", "+blpop"),
        ("~* &* +@all -del", "DEL", "+del"),
        ("~* &* +@all -zadd", "ZADD", "+zadd"),
        ("~* &* +@all -publish", "PUBLISH", "+publish"),
        ("~* &* +@all -subscribe", "SUBSCRIBE", "+subscribe"),
        ("~* &* +@all -eval -evalsha", "EVAL EVALSHA", "+eval +evalsha"),
        ("~* resetchannels +@all", "PUBLISH SUBSCRIBE", "&PREFIX:*"),
        ("~other:* &* +@all", "", "~PREFIX:*"),  # any command with a key
    ],
)
def test_doctor_lists_denied_commands_keys_and_channels(
    start: Start, settings: Any, rules: str, denied: str, remedy: str
) -> None:
    url = start(user=["app", "on", "nopass", *rules.split()], login="app:x@")
    found = examine()["acl"]
    commands = re.findall(r"[A-Z]{2,}", found.detail)
    assert ("error", True) == (found.level, {*denied.split()} <= {*commands} - {"PING"})
    assert not denied or denied.split() == commands
    rule = remedy.replace("PREFIX", settings.PREFIX)
    assert f"To grant them, run: ACL SETUSER <user> {rule}" == found.remedy
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_doctor_reports_a_disabled_command_and_denied_info(start: Start) -> None:
    start(rename_command=["BLPOP", '""'])
    acl = examine()["acl"]
    assert ("error", "Denied: BLPOP.") == (acl.level, acl.detail)
    assert acl.remedy.startswith("The server has no BLPOP.")
    start(user=["app", "on", "nopass", "~*", "&*", "+@all", "-info"], login="app:x@")
    found = examine()
    assert ("warning", True) == (found["info"].level, "+info" in found["info"].remedy)
    assert "version" not in found and found["acl"].level == "ok"


@pytest.mark.parametrize("prefix", ["shop", "%{b}:"])
def test_least_acl_permits_every_operation(start: Start, settings: Any, prefix: str) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": prefix}
    rules = ["resetchannels", *permissions.rules(prefix).split()]
    start(user=["app", "on", "nopass", *rules], login="app:x@", database=3, appendonly=True)
    assert {} == problems()
    held = Semaphore("s", 2, using="private"), Semaphore("s", 2, key="k", using="private")
    with held[0] as lease, held[1]:
        eventually(lambda: listed("s@k", using="private"))
        assert Semaphore("s", 1, using="private").acquire(blocking_timeout=0.2) is None
        for words in ("pause s", "resume s", "history s", "log", "status", "status s"):
            locks(*words.split(), using="private")
        lease.renew()
        full = Semaphore("s", 1, using="private")
        assert asyncio.run(full.aacquire(blocking_timeout=0.2)) is None


def test_status_names_the_cause_when_the_server_rejects_the_client(private: Start) -> None:
    for options, cause in (
        ({"login": "app:wrong@"}, "denies access"),
        ({"scheme": "rediss"}, "Without TLS, LOCATION in CACHES starts with redis://"),
    ):
        private(**options)
        _, error = failed("status", using="private")
        assert cause in error and ("running" in error) == ("scheme" in options)


# What uses the server


def test_doctor_warns_of_a_database_shared_with_another_alias(start: Start, settings: Any) -> None:
    url = start()
    own = settings.CACHES["private"]
    local = url.replace("127.0.0.1", "localhost")
    locmem = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    for other, level in (
        (own, "warning"),
        ({**own, "LOCATION": local.replace("/0", "/1")}, "ok"),
        ({**own, "LOCATION": local + "?socket_timeout=3"}, "warning"),
        (locmem, "ok"),
        ({**own, "LOCATION": "nonsense"}, "ok"),
        ({"BACKEND": "no.such.Backend"}, "ok"),
    ):
        settings.CACHES = {**settings.CACHES, "private": own, "pages": other}
        found = examine()["shared"]
        assert (level, level != "ok") == (found.level, "'pages'" in found.detail)


def test_doctor_mentions_foreign_keys_and_the_default_cache(start: Start, raw: redis.Redis) -> None:
    with redis.Redis.from_url(start()) as client:
        client.set("celery", 1)
    assert "another prefix" in examine()["shared"].detail
    assert "default cache" in examine("default")["shared"].detail


def test_doctor_lists_conflicting_limits_permanent_holders_and_overrides(
    start: Start, settings: Any
) -> None:
    with (
        redis.Redis.from_url(start()) as client,
        Semaphore("clash", 2, using="private"),
        Semaphore("clash", 4, using="private"),
        Semaphore("paused", 4, key="7", using="private"),
        Lock("permanent lock", timeout=math.inf, using="private"),
    ):
        eventually(lambda: listed("clash", "paused@7", "permanent lock", using="private"))
        texts = {"limits": "clash. ", "permanent": "hold permanent lock until"}
        texts["marks"] = "resized: paused. "
        for words in (["pause"], ["resize", "7"]):
            act(words[0], "paused", *words[1:], using="private")
            found = examine()
            for id, text in texts.items():
                assert ("warning", True) == (found[id].level, bool(found[id].remedy))
                assert text in f"{found[id].detail} ", "the policy is listed, not its keys"
            act("resume", "paused", using="private")
        info = f"{settings.PREFIX}:{{clash}}:info"
        when, rest = client.hget(info, "#clash").split(b" ", 1)
        client.hset(info, "#clash", b"%d %s" % (int(when) - 86_400_000, rest))
        assert "ok" == examine()["limits"].level, "the conflict is more than a day old"


def test_doctor_reports_how_many_names_it_examined(crowd: redis.Redis, settings: Any) -> None:
    found = examine()
    assert "part" == found["limits"].level
    assert "30 of 150 names were checked" in found["limits"].detail
    assert ("ok", "ok") == (found["permanent"].level, found["marks"].level)
    index = f"{settings.PREFIX}:holders"
    crowd.zadd(index, {f"n{n}": 2 + n for n in range(40)})
    assert "30 of 40 names were checked" in examine()["permanent"].detail
    with Lock("old", timeout=math.inf, using="private"):
        crowd.zadd(index, {"old": 1})  # all permanent leases are in the index within a minute
        found = examine()
        assert ("warning", True) == (
            found["permanent"].level,
            "hold old until" in found["permanent"].detail,
        )
    crowd.delete(f"{settings.PREFIX}:names", index)
    with Semaphore("api", 2, key="7", using="private"), Semaphore("plain", 2, using="private"):
        eventually(lambda: listed("api@7", "plain", using="private"))
        assert "ok" == examine()["limits"].level, "a policy is examined through its keys"


def test_doctor_lists_names_that_cannot_be_read(crowd: redis.Redis, settings: Any) -> None:
    for n in range(144, 150):
        crowd.set(f"{settings.PREFIX}:{{recent:{n}}}:leases", "foreign")
    found = examine()["unreadable"]
    names = ", ".join(f"recent:{n}" for n in range(149, 144, -1))
    assert ("error", True) == (found.level, found.detail.startswith(f"{names} and 1 more: "))


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


# A Cluster


def test_doctor_reports_a_cluster_that_is_down(start: Start) -> None:
    start(cluster_enabled=True)  # a single node without slots
    found = examine()
    assert (found["cluster"].level, found["cluster"].title) == ("error", "Cluster: fail")
    assert found["cluster"].detail == "1 node; 16384 slots without a node."
    assert found["names"].level == "error" and "slot" in found["names"].detail


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
def test_doctor_reports_each_check_of_a_sound_cluster_once(
    in_settings: Cluster, settings: Any
) -> None:
    found = doctor.examine(using="cluster")
    assert [f for f in found if f.level != "ok"] == []
    ids = [f.id for f in found if f.id != "latency"]  # reported for each node
    assert len(ids) == len(set(ids)) and not any(f.nodes for f in found if f.id != "latency")
    assert {"clock", "acl", "version", "eviction", "persistence", "cluster", "shared"} <= set(ids)
    (state,) = [f for f in found if f.id == "cluster"]
    assert (state.title, state.detail) == ("Cluster: ok", "3 nodes; 0 slots without a node.")
    # Another node of the same cluster, with another host name.
    url = in_settings.urls[2].replace("127.0.0.1", "localhost")
    again = {**in_settings.cache(), "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "again": again}
    shared = examine("cluster")["shared"]
    assert shared.level == "warning" and "'again'" in shared.detail


@pytest.mark.deep
def test_index_of_holders_works_on_a_cluster(
    in_settings: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.names.HOLDERS_INTERVAL", 0.2)

    def oldest() -> str:
        return locks("status", "--sort", "oldest", using="cluster")

    def permanent() -> str:
        return examine("cluster")["permanent"].detail

    with Lock("held", timeout=math.inf, using="cluster"), Lock("other", using="cluster"):
        eventually(lambda: "They hold held " in permanent())
        assert "held" in {line.split()[0] for line in oldest().splitlines()[1:]}
    with Lock("other", using="cluster"):
        eventually(lambda: "They hold held " not in permanent())


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
            by_id = {f.id: f for f in doctor.examine(using="cluster") if f.level != "ok"}
            with pytest.raises(SystemExit):
                locks("doctor", using="cluster", stdout=(out := StringIO()))
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.acl_setuser("default", enabled=True, commands=["+@all"])
            for one in (client, third):
                one.config_set("appendonly", "yes")
    assert set(by_id) == {"acl", "eviction", "persistence"}
    assert by_id["acl"].nodes == by_id["eviction"].nodes == (address(faulty),)
    assert by_id["acl"].detail == "Denied: ZADD."
    assert by_id["persistence"].nodes == tuple(sorted([address(faulty), address(other)]))
    assert f"    On {address(faulty)}.\n" in out.getvalue()


@pytest.mark.deep
def test_doctor_reports_a_node_that_is_down_and_examines_the_others(in_settings: Cluster) -> None:
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
