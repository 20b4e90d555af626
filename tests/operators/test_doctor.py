"""The findings of `manage.py locks doctor` on servers with and without problems."""

import asyncio
import contextlib
import math
import re
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from django.conf import settings as site

from devtools.servers import RedisServer, find_server
from devtools.topologies import Cluster
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.operators import doctor
from tests.behaviour.both import MAX_WAIT, eventually
from tests.support.backends import cache_of
from tests.support.operators import act, failed, locks, private_server  # noqa: F401 - a fixture
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture

pytestmark = [pytest.mark.usefixtures("fresh_renewer"), pytest.mark.promise(27)]


@pytest.fixture(autouse=True)
def slow_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the doctor accept slow replies, because latency depends on the load of the machine."""
    monkeypatch.setattr(doctor.servers, "SLOW", MAX_WAIT)
    monkeypatch.setattr(doctor.servers, "TOO_SLOW", MAX_WAIT)


def examine(using: str = "private") -> dict[str, doctor.Finding]:
    return {finding.id: finding for finding in doctor.examine(using=using)}


def problems(using: str = "private") -> dict[str, str]:
    return {id: one.level for id, one in examine(using).items() if one.level != "ok"}


@pytest.fixture
def crowd(private: Any, settings: Any) -> Iterator[redis.Redis]:
    """A server with 150 recent names. The doctor examines only some of them."""
    with redis.Redis.from_url(private()) as client:
        now = client.time()[0] * 1000
        names = {f"recent:{n:03}": now + 60_000 + n for n in range(150)}
        client.zadd(f"{settings.PREFIX}:names", names)
        yield client


def test_doctor_finds_no_problem_on_a_server_with_recommended_settings(private: Any) -> None:
    url = private(appendonly=True)
    found = examine()
    assert {} == problems()
    assert {"latency", "clock", "acl", "version", "eviction", "persistence"} <= set(found)
    assert {"shared", "limits", "permanent", "overrides"} <= set(found)
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
def test_doctor_derives_errors_and_warnings_from_the_server_information(
    facts: Any, levels: dict[str, str]
) -> None:
    sound = {"redis_version": "7.0.15", "role": "master", "aof_enabled": 1, "used_memory": 1}
    state = {"cluster_state": "ok", "cluster_slots_ok": 16384, "cluster_known_nodes": 3}
    info = {key: str(value) for key, value in {**sound, **state, **facts}.items()}
    found = [*doctor.servers.judge(info, info.get), *doctor.servers.judge_cluster(info)]
    assert levels == {one.id: one.level for one in found if one.level != "ok"}
    assert {"version", "eviction", "persistence", "cluster"} <= {one.id for one in found}
    assert all(bool(one.remedy) == (one.level != "ok") for one in found)


def test_doctor_exits_with_code_1_for_errors_but_not_for_warnings(
    crowd: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    for offset, level in ((-4, "warning"), (90, "warning"), (0, "ok")):
        monkeypatch.setattr("time.time", lambda offset=offset: clock() - offset)
        assert level == examine()["clock"].level
    # In each case, one warning is about missing persistence.
    for slow, too_slow, level, counts in (
        (9, 9, "ok", "0 errors, 1 warning, "),
        (0, 9, "warning", "0 errors, 2 warnings, "),
        (0, 0, "error", "1 error, 1 warning, "),
    ):
        monkeypatch.setattr(doctor.servers, "SLOW", slow)
        monkeypatch.setattr(doctor.servers, "TOO_SLOW", too_slow)
        assert level == examine()["latency"].level
        out = StringIO()
        with contextlib.nullcontext() if level != "error" else pytest.raises(SystemExit, match="1"):
            locks("doctor", using="private", stdout=out)
        assert counts in out.getvalue() and out.getvalue().endswith(" ok\n")


def test_doctor_hides_passwords_and_reports_that_uwsgi_runs_without_threads(
    private: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(node: Any) -> Any:
        raise Unavailable("down") from redis.ResponseError("redis://me:secret@host is down.")

    private()
    monkeypatch.setitem(doctor.servers.CHECKS, "clock", broken)
    assert "The reply was: redis://***@host is down." == examine()["clock"].detail
    assert "uwsgi" not in examine()
    for option, level in (("master", "error"), (b"enable-threads", "ok")):
        monkeypatch.setitem(sys.modules, "uwsgi", types.SimpleNamespace(opt={option: b"true"}))
        assert level == examine()["uwsgi"].level


def test_server_with_full_memory_is_not_reported_as_unreachable(private: Any) -> None:
    with redis.Redis.from_url(private()) as client:
        with Lock("a", using="private"):
            eventually(lambda: listed("a", using="private"))
        client.set("other", "x" * 2_000_000)
        client.config_set("maxmemory", "1mb")
        found = examine()["eviction"]
        assert ("error", "Memory is full") == (found.level, found.title.partition(":")[0])
        _, error = failed("pause", "a", using="private")
        assert "memory is full" in error and "running" not in error


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
        ("~other:* &* +@all", "", "~PREFIX:*"),  # no access to the keys of the library
    ],
)
def test_doctor_lists_the_commands_keys_and_channels_that_the_acl_denies(
    private: Any, settings: Any, rules: str, denied: str, remedy: str
) -> None:
    url = private(user=["app", "on", "nopass", *rules.split()], login="app:x@")
    found = examine()["acl"]
    commands = re.findall(r"[A-Z]{2,}", found.detail)
    assert ("error", True) == (found.level, {*denied.split()} <= {*commands} - {"PING"})
    assert not denied or denied.split() == commands
    rule = remedy.replace("PREFIX", settings.PREFIX)
    assert f"To grant the permissions, run: ACL SETUSER <user> {rule}" == found.remedy
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


class Wrapped:
    """A connection as the pools of redis-py with a client-side cache have them: it lacks an
    attribute that redis-py's own PubSub needs."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def read_response(self, *args: Any, **options: Any) -> Any:
        return self._connection.read_response(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "health_check_interval":
            raise AttributeError(name)
        return getattr(self._connection, name)


class PoolOfWrapped(redis.ConnectionPool):
    def make_connection(self) -> Any:
        return Wrapped(super().make_connection())


@pytest.mark.parametrize("protocol", [2, 3])
def test_doctor_examines_a_pool_that_pubsub_of_redis_py_can_not_use(
    private: Any, settings: Any, protocol: int
) -> None:
    url = private(user=["app", "on", "nopass", "~*", "&*", "+@all", "-subscribe"], appendonly=True)
    options = {
        "CONNECTION_POOL_CLASS": f"{__name__}.PoolOfWrapped",
        "CONNECTION_POOL_KWARGS": {"protocol": protocol},
    }
    denied = cache_of(url.replace("redis://", "redis://app:x@"), **options)
    caches = {"private": cache_of(url, **options), "denied": denied}
    settings.CACHES = {**settings.CACHES, **caches}
    assert "ok" == examine()["acl"].level
    assert "Denied: SUBSCRIBE." == examine("denied")["acl"].detail
    with redis.Redis.from_url(url) as client:
        eventually(lambda: not client.pubsub_channels())


def test_doctor_reports_a_disabled_command_and_a_denied_info_command(private: Any) -> None:
    private(rename_command=["BLPOP", '""'])
    acl = examine()["acl"]
    assert ("error", "Denied: BLPOP.") == (acl.level, acl.detail)
    assert acl.remedy.startswith("The server has no command BLPOP.")
    private(user=["app", "on", "nopass", "~*", "&*", "+@all", "-info"], login="app:x@")
    found = examine()
    assert ("warning", True) == (found["info"].level, "+info" in found["info"].remedy)
    assert "version" not in found and found["acl"].level == "ok"


@pytest.mark.parametrize("prefix", ["shop", "%{b}:", "a b", r"a*[c]\?"])
def test_every_operation_works_with_the_acl_rules_that_doctor_advises(
    private: Any, settings: Any, prefix: str
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": prefix}
    rules = ["resetchannels", *doctor.rules(prefix).split()]
    private(user=["app", "on", "nopass", *rules], login="app:x@", database=3, appendonly=True)
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


def test_locks_status_prints_the_cause_when_the_server_rejects_the_client(private: Any) -> None:
    for options, cause in (
        ({"login": "app:wrong@"}, "denies access"),
        ({"scheme": "rediss"}, "LOCATION in CACHES must start with redis://"),
    ):
        private(**options)
        _, error = failed("status", using="private")
        assert cause in error and ("running" in error) == ("scheme" in options)


def test_doctor_warns_of_a_database_shared_with_another_alias(private: Any, settings: Any) -> None:
    place = tempfile.TemporaryDirectory()  # a socket's path has to be short
    url = private(unixsocket=f"{place.name}/a")
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
    with redis.Redis.from_url(url) as client:
        client.set("celery", 1)
    assert "another prefix" in examine()["shared"].detail
    assert "default cache" in examine("default")["shared"].detail
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    for path, shared in (("b", False), ("a", True)):
        sockets = [{**own, "LOCATION": f"unix://{place.name}/{one}?db=0"} for one in ("a", path)]
        both = dict(zip(("private", "pages"), sockets, strict=True))
        settings.CACHES = {**settings.CACHES, **both}
        assert shared == ("'pages'" in examine()["shared"].detail), f"the other socket is {path!r}"
    place.cleanup()


def test_doctor_lists_conflicting_limits_permanent_holders_and_overrides(
    private: Any, settings: Any
) -> None:
    with (
        redis.Redis.from_url(private()) as client,
        Semaphore("clash", 2, using="private"),
        Semaphore("clash", 4, using="private"),
        Semaphore("paused", 4, key="7", using="private"),
        Lock("permanent lock", timeout=math.inf, using="private"),
    ):
        eventually(lambda: listed("clash", "paused@7", "permanent lock", using="private"))
        texts = {"limits": "clash. ", "permanent": "Permits of permanent lock stay in use until"}
        texts["overrides"] = "resized: paused. "
        for words in (["pause"], ["resize", "7"]):
            act(words[0], "paused", *words[1:], using="private")
            found = examine()
            for id, text in texts.items():
                assert ("warning", True) == (found[id].level, bool(found[id].remedy))
                assert text in f"{found[id].detail} ", "the detail does not name the policy alone"
            act("resume", "paused", using="private")
        act("resize", "paused", "--reset", using="private")
        act("pause", "paused", key="7", using="private")
        assert "Paused or resized: paused@7." == examine()["overrides"].detail
        info = f"{settings.PREFIX}:{{clash}}:info"
        when, rest = client.hget(info, "#clash").split(b" ", 1)
        client.hset(info, "#clash", b"%d %s" % (int(when) - 86_400_000, rest))
        assert "ok" == examine()["limits"].level, "the conflict is more than a day old"


def test_doctor_examines_all_keys_of_a_policy_with_few_keys(private: Any, settings: Any) -> None:
    with redis.Redis.from_url(private(appendonly=True)) as client:
        for key in "abc":
            Semaphore("keyed", 3, key=key, using="private").acquire().release()
        eventually(lambda: 3 == client.zcard(f"{settings.PREFIX}:{{keyed}}:keys"))
    assert "ok" == examine()["limits"].level, examine()["limits"].detail


def test_doctor_reports_how_many_names_it_examined(crowd: redis.Redis, settings: Any) -> None:
    found = examine()
    assert "part" == found["limits"].level
    assert "30 of 150 names were checked" in found["limits"].detail
    assert ("ok", "ok") == (found["permanent"].level, found["overrides"].level)
    index = f"{settings.PREFIX}:holders"
    crowd.zadd(index, {f"n{n}": 2 + n for n in range(40)})
    assert "30 of 40 names were checked" in examine()["permanent"].detail
    with Lock("old", timeout=math.inf, using="private"):
        crowd.zadd(index, {"old": 1})  # the process would write this within a minute
        assert "Permits of old stay in use until" in examine()["permanent"].detail
    crowd.delete(f"{settings.PREFIX}:names", index)
    with Semaphore("api", 2, key="7", using="private"), Semaphore("plain", 2, using="private"):
        eventually(lambda: listed("api@7", "plain", using="private"))
        assert "ok" == examine()["limits"].level, "the keys of the policy were not examined"


def test_doctor_command_looks_at_all_names_and_the_page_says_when_that_was(
    crowd: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "part" == examine()["limits"].level
    with Semaphore("recent:007", 2, using="private"), Semaphore("recent:007", 4, using="private"):
        text = locks("doctor", using="private")
        assert "used different limits for recent:007." in " ".join(text.split())
        assert "for recent:007." in examine()["limits"].detail, "a quick look forgets what was odd"
    crowd.flushdb()
    now = crowd.time()[0] * 1000
    names = {f"recent:{n:03}": now - n for n in range(150)}
    crowd.zadd(f"{site.PREFIX}:names", names)
    assert "All 150 were checked." in locks("doctor", using="private")
    found = examine()["limits"]
    assert "ok" == found.level and re.search(r"at \d\d:\d\d:\d\d, and 30 of 150", found.detail)
    left = crowd.pttl(f"{site.PREFIX}:looked") / 3_600_000
    assert 23 < left <= 24, f"the page forgets after {left} h when all names were seen"
    crowd.delete(f"{site.PREFIX}:looked")
    monkeypatch.setattr("django_redis_sync.management.commands.locks.LOOK_SECONDS", 1e-9)
    text = " ".join(locks("doctor", using="private").split())
    assert "in part: All callers" in text and "0 of 150 names were checked." in text


def test_doctor_tries_each_kind_and_leaves_nothing(private: Any) -> None:
    url = private(appendonly=True)
    assert ("ok", "Tried: semaphore, reader, writer.") == (
        (found := examine()["trial"]).level,
        found.detail,
    )
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_doctor_fails_on_a_server_that_grants_no_permit(
    private: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis.Redis.from_url(private()) as client:
        client.execute_command("ACL", "SETUSER", "default", "-hset", "-zadd")
        found = examine()["trial"]
        client.execute_command("ACL", "SETUSER", "default", "+@all")
    assert ("error", True) == (found.level, "Tried: semaphore. Error: " in found.detail)
    assert "ok" == examine()["trial"].level


def test_doctor_says_that_fakeredis_is_no_server(settings: Any) -> None:
    fakeredis = pytest.importorskip("fakeredis")
    name = "FakeRedisConnection" if hasattr(fakeredis, "FakeRedisConnection") else "FakeConnection"
    options = {"CONNECTION_POOL_KWARGS": {"connection_class": getattr(fakeredis, name)}}
    cache = {**settings.CACHES["default"], "LOCATION": "redis://fake:6379/0", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "private": cache}
    found = examine()["trial"]
    assert ("error", "This is fakeredis, and no Redis server") == (found.level, found.title)
    with pytest.raises(SystemExit, match="1"):
        locks("doctor", using="private")


def test_doctor_notices_another_project_with_the_same_prefix(private: Any, settings: Any) -> None:
    private()

    def use(secret: str, urls: str) -> None:
        settings.SECRET_KEY, settings.ROOT_URLCONF = secret, urls
        settings.CACHES = {**settings.CACHES}  # forget what this process has written
        renewer("private").housekeeper.forget()
        with Lock(f"of {urls}", using="private"):
            eventually(lambda: listed(f"of {urls}", using="private"))

    settings.REDIS_SYNC = {k: v for k, v in settings.REDIS_SYNC.items() if k != "KEY_PREFIX"}
    own = settings.SECRET_KEY, settings.ROOT_URLCONF
    use(*own)
    assert "ok" == examine()["projects"].level
    use("another secret", "shop.urls")
    assert "ok" != examine()["projects"].level
    use(*own)
    found = examine()["projects"]
    assert ("warning", True) == (found.level, "shop.urls" in found.detail), found.detail
    assert "KEY_PREFIX" in found.remedy
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": f"{settings.PREFIX}:sync"}
    assert "ok" == examine()["projects"].level, "the prefix was chosen for the locks"


def test_doctor_lists_names_that_cannot_be_read(crowd: redis.Redis, settings: Any) -> None:
    for n in range(144, 150):
        crowd.set(f"{settings.PREFIX}:{{recent:{n}}}:leases", "foreign")
    found = examine()["unreadable"]
    names = ", ".join(f"recent:{n}" for n in range(149, 144, -1))
    assert ("error", True) == (found.level, found.detail.startswith(f"{names} and 1 more: "))


def test_doctor_reports_a_cluster_that_is_down(private: Any) -> None:
    private(cluster_enabled=True)  # a single node without slots
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
def in_settings(cluster: Cluster, settings: Any) -> Cluster:
    """Add the Cluster to the settings, as the cache alias `cluster`. Return the Cluster."""
    settings.CACHES = {**settings.CACHES, "cluster": {**cluster.cache(), "KEY_PREFIX": "doctor"}}
    return cluster


def address(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.mark.deep
def test_doctor_reports_each_check_only_once_for_all_nodes_of_a_working_cluster(
    in_settings: Cluster, settings: Any
) -> None:
    found = [one for one in doctor.examine(using="cluster") if one.id != "latency"]
    assert {"ok"} == {one.level for one in found}
    ids = [one.id for one in found]
    assert len(ids) == len(set(ids)) and not any(one.nodes for one in found)
    assert {"clock", "acl", "version", "eviction", "persistence", "cluster", "shared"} <= set(ids)
    state = examine("cluster")["cluster"]
    assert ("Cluster: ok", "3 nodes; 0 slots without a node.") == (state.title, state.detail)
    # The doctor knows that two aliases share a Cluster, although their URLs name different nodes.
    url = in_settings.urls[2].replace("127.0.0.1", "localhost")
    settings.CACHES = {**settings.CACHES, "again": {**in_settings.cache(), "LOCATION": url}}
    shared = examine("cluster")["shared"]
    assert ("warning", True) == (shared.level, "'again'" in shared.detail)


@pytest.mark.deep
def test_permanent_holder_on_a_cluster_is_found_by_doctor_and_status(
    in_settings: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_sync.engine.indexes.HolderIndex.interval", 0.2)

    def is_found() -> bool:
        return "Permits of held stay " in examine("cluster")["permanent"].detail

    with Lock("other", using="cluster"):
        with Lock("held", timeout=math.inf, using="cluster"):
            eventually(is_found)
            oldest = locks("status", "--sort", "oldest", using="cluster").splitlines()
            assert "held" in {line.split()[0] for line in oldest[1:]}
        eventually(lambda: not is_found())


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
    nodes = tuple(sorted([address(faulty), address(other)]))
    expected = dict.fromkeys(("acl", "eviction"), (address(faulty),)) | {"persistence": nodes}
    assert expected == {id: one.nodes for id, one in by_id.items()}
    assert "Denied: ZADD." == by_id["acl"].detail
    assert f"    On {address(faulty)}.\n" in out.getvalue()


@pytest.mark.deep
def test_doctor_reports_the_node_that_is_down_and_examines_all_other_nodes(
    in_settings: Cluster,
) -> None:
    last = in_settings.primaries[-1]
    doctor.examine(using="cluster")  # find the nodes while all of them answer
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
