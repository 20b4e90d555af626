"""`locks doctor`: each finding, provoked on a server of its own."""

import math
import sys
import types
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import call_command

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore, Unavailable, doctor, operations, permissions
from django_redis_sync.doctor import Finding
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper  # noqa: F401 - a fixture

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
    real = doctor._info

    def old(server: Any) -> Any:
        return {**(real(server) or {}), "redis_version": "6.0.16", "role": "slave"}

    monkeypatch.setattr(doctor, "_info", old)
    found = examine()
    assert (found["version"].level, found["role"].level) == ("error", "error")
    assert "6.0.16" in found["version"].title


def test_a_clock_that_is_off_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    real = doctor.time.time
    monkeypatch.setattr(doctor, "time", types.SimpleNamespace(time=lambda: real() - 90))
    found = examine()["clock"]
    assert found.level == "warning" and "+90.0 s" in found.title


def test_slow_answers_are_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.setattr(doctor, "SLOW", 0.0)
    assert examine()["latency"].level == "warning"
    monkeypatch.setattr(doctor, "TOO_SLOW", 0.0)
    assert examine()["latency"].level == "error"


@pytest.mark.parametrize("denied", ["blpop", "hincrby", "zadd", "publish", "subscribe", "time"])
def test_a_command_that_is_not_allowed_is_named(start: Start, denied: str, settings: Any) -> None:
    rules = f"~* &* +@all -{denied} nopass".split()
    url = start(user=["app", "on", *rules], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error"
    assert found.detail == f"Refused: {denied.upper()}."
    assert f"+{denied}" in found.remedy
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def test_keys_that_are_not_allowed_are_noticed(start: Start) -> None:
    start(user=["app", "on", "nopass", "~other:*", "&*", "+@all"], login="app:x@")
    found = examine()["acl"]
    assert found.level == "error" and "EVALSHA" in found.detail


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
        eventually(lambda: ("s", "k") in doctor.inspection.names(using="private"))
        assert Semaphore("s", 1, using="private").acquire(blocking_timeout=0.2) is None
        operations.pause("s", using="private")
        operations.resume("s", using="private")
        doctor.inspection.history([("s", None)], using="private")
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
        eventually(lambda: len(doctor.inspection.names(using="private")) == 2)
        operations.pause("paused", using="private")
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
    assert found["names"].level == "error" and "slot" in found["names"].detail


def test_redis_down_is_unavailable(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "private": cache}
    with pytest.raises(Unavailable):
        examine()


def test_each_command_that_is_needed_can_be_tried() -> None:
    tried = set(permissions._HARMLESS) | set(permissions._APART)
    assert set(permissions.needed()) - tried == set()
