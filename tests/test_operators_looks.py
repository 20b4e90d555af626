"""What `locks doctor` makes of a server's answers, at each threshold: without a server."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from redis import exceptions as errors

from django_redis_sync.engine.cluster import ClusterServer
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.operators import doctor
from django_redis_sync.operators.doctor import (
    Finding,
    examining,
    neighbours,
    permissions,
    servers,
)
from django_redis_sync.operators.doctor.servers import Node
from django_redis_sync.operators.status import Status, Unread
from django_redis_sync.protocol.plans import Failure
from tests.support.caches import under_prefixes
from tests.support.statuses import AT, forever, holder, status


class Answers:
    """In the place of a server: a reply by the words of the command."""

    alias = "default"

    def __init__(self, **replies: Any) -> None:
        self.replies = {key.replace("_", " "): value for key, value in replies.items()}

    def command(self, *words: Any, timeout: float = 0.0) -> Any:
        reply = self.replies[" ".join(map(str, words))]
        return reply() if callable(reply) else reply


def node(**replies: Any) -> Any:
    return Node("", Answers(**replies), lambda key: True)  # type: ignore[arg-type]


def level(found: Iterator[Finding]) -> str:
    """That of a single finding; what is not ok has a remedy, what is ok has none."""
    (finding,) = found
    assert (finding.level != "ok") == bool(finding.remedy), finding
    return finding.level


@pytest.mark.parametrize(
    ("looks", "ids"),
    [
        (servers.LOOKS, ["latency", "clock", "acl", "info"]),
        (neighbours.LOOKS, ["shared", "names", "uwsgi"]),
    ],
    ids=["of a node", "beside it"],
)
def test_a_look_that_fails_is_a_finding_under_the_looks_own_id(looks: Any, ids: list[str]) -> None:
    def refused(about: Any) -> Any:
        raise Failure(errors.ResponseError("NOPERM of this command"), 0.0, "final")

    assert ids == [finding.id for finding in examining._looked(dict.fromkeys(looks, refused), None)]


@pytest.mark.parametrize(("why", "told"), [("final", True), ("unavailable", False)])
def test_what_is_refused_is_told_from_what_is_not_answered(why: Any, told: bool) -> None:
    def refuse() -> Any:
        raise Failure(errors.ResponseError("NOPERM or LOADING"), 0.0, why)

    one = node(INFO=refuse)
    if told:
        assert ["info"] == [finding.id for finding in servers._by_info(one)]
    else:
        with pytest.raises(Failure):
            list(servers._by_info(one))


@pytest.mark.parametrize("wrapped", [False, True], ids=["failure", "unavailable"])
def test_a_server_that_turns_us_away_is_quoted(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = errors.AuthenticationError("WRONGPASS invalid username-password pair.")

    def nodes_of(alias: str) -> Any:
        if wrapped:
            raise Unavailable("Redis: of no use") from said
        raise Failure(said, 0.0, "unavailable")

    monkeypatch.setattr(servers, "nodes_of", nodes_of)
    (found,) = doctor.examine()
    assert ("access", "error") == (found.id, found.level)
    assert "What came was: WRONGPASS invalid username-password pair." == found.detail


def test_a_silent_node_is_a_finding_as_long_as_another_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    down = {"a"}

    def look(one: Node) -> Iterator[Finding]:
        if one.name in down:
            raise Failure(errors.ConnectionError("gone"), 0.0, "unavailable")
        yield Finding("latency", "ok", "soon", "")

    nodes = [Node(name, Answers(), lambda key: True) for name in "ab"]  # type: ignore[arg-type]
    monkeypatch.setattr(servers, "nodes_of", lambda alias: nodes)
    monkeypatch.setattr(servers, "LOOKS", {"latency": look})
    monkeypatch.setattr(neighbours, "LOOKS", {})
    said = {finding.id: (finding.level, finding.nodes) for finding in doctor.examine()}
    assert {"node": ("error", ("a",)), "latency": ("ok", ("b",))} == said
    down.add("b")
    with pytest.raises(Unavailable):
        doctor.examine()


# Each node


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ([0.009] * 10, "ok"),
        ([0.011] * 10, "warning"),
        ([0.09] * 10, "warning"),
        ([0.11] * 10, "error"),
        ([0.001] * 6 + [5.0] * 4, "ok"),
        ([5.0] * 6 + [0.001] * 4, "error"),
    ],
    ids=["soon", "slow", "still slow", "too slow", "mostly soon", "mostly not"],
)
def test_the_median_of_some_round_trips_tells_how_slow_a_server_is(
    spent: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [0.0], list(spent)

    def ping() -> str:
        now[0] += left.pop()
        return "PONG"

    monkeypatch.setattr(servers, "clock", lambda: now[0])
    (found,) = servers._latency(node(PING=ping))
    assert said == level(iter([found]))
    assert f"Round trip: {statistics.median(spent) * 1000:.1f} ms" == found.title


@pytest.mark.parametrize(
    ("offset", "said"), [(0.9, "ok"), (-0.9, "ok"), (1.1, "warning"), (-1.1, "warning")]
)
def test_a_clock_may_be_off_by_a_second_either_way(
    offset: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "time", SimpleNamespace(time=lambda: 1_790_000_000.0))
    seconds, part = divmod(1_790_000_000.0 + offset, 1)
    reply = [str(int(seconds)), str(round(part * 1e6))]
    assert said == level(servers._clock(node(TIME=reply)))


@pytest.mark.parametrize(
    ("version", "said"),
    [("6.0.16", "error"), ("6.2.0", "ok"), ("7.0.15", "ok"), ("10.0.0", "ok"), ("unstable", "ok")],
)
def test_a_version_is_compared_by_its_numbers(version: str, said: str) -> None:
    assert said == level(servers._version(Answers(), {"redis_version": version}))  # type: ignore[arg-type]


def test_a_server_is_called_by_its_name() -> None:
    valkey = {"redis_version": "7.2.4", "valkey_version": "8.0.1"}
    for info, name in ((valkey, "Valkey 8.0.1"), ({"redis_version": "7.0.15"}, "Redis 7.0.15")):
        (found,) = servers._version(Answers(), info)  # type: ignore[arg-type]
        assert f"Version: {name}" == found.title


def test_a_replica_is_an_error_and_a_primary_is_not_mentioned() -> None:
    assert "error" == level(servers._role(Answers(), {"role": "slave"}))  # type: ignore[arg-type]
    assert [] == [*servers._role(Answers(), {"role": "master"})]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "most", "used", "said"),
    [
        ("noeviction", 0, 10**9, "ok"),
        ("noeviction", 1000, 900, "ok"),
        ("noeviction", 1000, 901, "warning"),
        ("noeviction", 1000, 999, "warning"),
        ("noeviction", 1000, 1000, "error"),
        ("allkeys-lru", 0, 0, "warning"),
        ("allkeys-lru", 1000, 0, "error"),
    ],
)
def test_memory_that_ends_or_is_evicted(policy: str, most: int, used: int, said: str) -> None:
    info = {"maxmemory_policy": policy, "maxmemory": str(most), "used_memory": str(used)}
    assert said == level(servers._eviction(Answers(), info))  # type: ignore[arg-type]
    (found,) = servers._eviction(Answers(), info)  # type: ignore[arg-type]
    assert ("There is no maxmemory yet" in found.detail) == (policy != "noeviction" and not most)
    if policy == "noeviction" and most:
        assert (f"{used // 10} %" in found.title) == (said != "ok")


@pytest.mark.parametrize(
    ("info", "fsync", "said"),
    [
        ({"aof_enabled": "1"}, "everysec", "ok"),
        ({"aof_enabled": "1"}, "no", "warning"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "everysec", "error"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "no", "error"),
        ({"aof_enabled": "0"}, "everysec", "warning"),
    ],
)
def test_what_a_restart_keeps(info: dict[str, str], fsync: str, said: str) -> None:
    replies = {"CONFIG_GET_appendfsync": ["appendfsync", fsync], "CONFIG_GET_save": ["save", ""]}
    assert said == level(servers._persistence(Answers(**replies), info))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "fine", "said"),
    [("ok", 16384, "ok"), ("ok", 16383, "warning"), ("fail", 16384, "error"), ("fail", 0, "error")],
)
def test_slots_without_a_node(state: str, fine: int, said: str) -> None:
    text = f"cluster_state:{state}\r\ncluster_slots_ok:{fine}\r\ncluster_known_nodes:3\r\n"
    server: Any = Answers(CLUSTER_INFO=text)
    assert said == level(servers._cluster(server, {"cluster_enabled": "1"}))
    assert [] == [*servers._cluster(server, {"cluster_enabled": "0"})]


# All of them


def test_an_alias_shares_a_database_with_those_of_the_same_place(settings: Any) -> None:
    def places(url: str) -> set[Any]:
        cache = {**settings.CACHES["default"], "LOCATION": url}
        settings.CACHES = {**settings.CACHES, "other": cache}
        return neighbours._places("other")

    here = places("redis://127.0.0.1:7777/3")
    assert here == places("redis://localhost:7777/3") == places("redis://me:word@127.0.0.1:7777/3")
    others = ("redis://127.0.0.1:7777/4", "redis://127.0.0.1:7778/3", "redis://127.0.0.2:7777/3")
    assert not places("redis://127.0.0.1/0") & places("redis://127.0.0.1/1")
    assert not any(here & places(url) for url in others)
    assert places("redis://127.0.0.1/0") == places("redis://127.0.0.1:6379")
    assert places("unix:///a.sock?db=1") != places("unix:///b.sock?db=1")


@pytest.mark.parametrize(
    ("changed", "shared"),
    [({}, True), ({"service": "backup"}, False), ({"port": 1}, False), ({"db": 1}, False)],
)
def test_by_sentinel_a_place_is_the_service_that_those_who_are_asked_know(
    changed: Any, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(service: str = "main", port: int = 26379, db: int = 0, **_: Any) -> set[Any]:
        asked = SimpleNamespace(connection_kwargs={"host": "localhost", "port": port})
        manager = SimpleNamespace(sentinels=[SimpleNamespace(connection_pool=asked)])
        pool = SimpleNamespace(
            connection_kwargs={"db": db}, service_name=service, sentinel_manager=manager
        )
        server = SimpleNamespace(pool=lambda: pool)
        monkeypatch.setattr(neighbours, "server_of", lambda alias: server)
        return neighbours._places("default")

    assert shared == bool(places() & places(**changed))


@pytest.mark.parametrize(
    ("addresses", "shared"),
    [([("127.0.0.1", 7002), ("h", 7000)], True), ([("h", 7001)], False), ([], False)],
)
def test_a_cluster_is_shared_by_all_that_name_one_of_its_nodes(
    addresses: list[Any], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(addresses: list[Any]) -> set[Any]:
        server = ClusterServer.__new__(ClusterServer)
        server.topology = SimpleNamespace(addresses=addresses)  # type: ignore[assignment]
        monkeypatch.setattr(neighbours, "server_of", lambda alias: server)
        return neighbours._places("default")

    assert shared == bool(places([("localhost", 7002), ("localhost", 7001)]) & places(addresses))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names that each finding is about, by its id."""

    def judge(*found: Status) -> dict[str, str]:
        monkeypatch.setattr(neighbours, "Recent", lambda using: [one.name for one in found])
        monkeypatch.setattr(neighbours, "newest_keys", lambda names, using: {n: [] for n in names})
        monkeypatch.setattr(neighbours, "marked", lambda using: [])
        monkeypatch.setattr(neighbours, "readable", lambda pairs, using: ([*found], []))
        said = list(neighbours._names("default"))
        return {one.id: one.detail for one in said if one.level != "ok"}

    return judge


def test_the_marks_of_a_policy_are_said_once_and_not_of_each_key(judged: Any) -> None:
    paused, resized = {"paused_since": AT}, {"override": 5}
    said = judged(
        status("exports", **paused),
        status("exports", "7", **paused),
        status("imports", **resized),
        status("imports", "7", **resized),
        status("free"),
    )
    assert {"marks": "Paused or resized: exports, imports."} == said


def test_of_very_many_names_the_marked_ones_are_looked_at_first(
    judged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "MOST_NAMES", 1)
    judged(*map(status, "abc"))
    asked: list[Any] = []
    monkeypatch.setattr(neighbours, "marked", lambda using: [("z", None)])
    monkeypatch.setattr(neighbours, "newest_keys", lambda names, using: {n: ["1"] for n in names})
    monkeypatch.setattr(
        neighbours, "readable", lambda pairs, using: asked.extend(pairs) or ([], [])
    )
    list(neighbours._names("default"))
    assert [("z", None), ("a", None)] == asked


def test_names_that_cannot_be_read_are_said_with_the_reason(
    judged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unreadable" not in judged(status("exports"))
    unread = [Unread("odd", "8", Unavailable("another program's value"))]
    monkeypatch.setattr(neighbours, "readable", lambda pairs, using: ([], unread))
    found, *_ = neighbours._names("default")
    assert ("unreadable", "error") == (found.id, found.level) and found.remedy
    assert "odd@8: another program's value" == found.detail


def test_callers_that_disagreed_within_a_day_are_said(judged: Any) -> None:
    day = timedelta(days=1)
    said = judged(
        status("lately", clash=(3, AT - day + timedelta(seconds=1))),
        status("long ago", clash=(3, AT - day)),
    )
    assert ["limits"] == [*said] and "lately. " in said["limits"]


def test_permanent_holders_are_said(judged: Any) -> None:
    said = judged(
        status("a", holders=(holder(), forever())),
        status("b"),
        status("c", holders=(forever(), holder())),
        status("d", holders=(holder(),)),
        status("e", "7", holders=(forever(),)),
    )
    assert ["permanent"] == [*said] and "Of a, c, e@7." in said["permanent"]


def test_a_finding_about_names_is_titled_by_what_was_found(judged: Any) -> None:
    day = timedelta(days=1)
    judged(status("a", clash=(3, AT), holders=(forever(),), paused_since=AT))
    bad = {one.id: one.title for one in neighbours._names("default")}
    judged(status("a", clash=(3, AT - 2 * day)))
    fine = {one.id: one.title for one in neighbours._names("default")}
    assert {
        "limits": "Callers disagree on the limit",
        "permanent": "There are permanent holders",
        "marks": "An operator's marks are in force",
    } == bad
    assert {
        "limits": "All callers of a name agree on its limit",
        "permanent": "There are no permanent holders",
        "marks": "Nothing is paused or resized",
    } == fine


def test_of_many_names_some_are_said() -> None:
    names = [f"n{i}" for i in range(7)]
    assert "n0, n1, n2, n3, n4" == neighbours._listed(names[:5])
    assert "n0, n1, n2, n3, n4 and 2 more" == neighbours._listed(names)


@pytest.mark.parametrize(("runs", "said"), [(None, []), (True, ["ok"]), (False, ["error"])])
def test_uwsgi_has_to_run_threads(
    runs: bool | None, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "uwsgi_runs_threads", lambda: runs)
    assert said == [level(iter([found])) for found in neighbours._uwsgi("default")]


def test_what_is_tried_is_tried_on_keys_of_the_node_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered, used = list[str](), set[str]()

    def has(base: str) -> bool:
        offered.append(base)
        return len(offered) == 3

    def command(verb: str, *words: Any) -> None:
        used.update(word[:-1] for word in words if str(word).startswith("p:{"))

    monkeypatch.setattr(permissions, "_refused_channel", lambda server, channel: "")
    assert [] == permissions.lacking(SimpleNamespace(command=command), "p", has)  # type: ignore[arg-type]
    assert (3, {offered[-1]}) == (len(offered), used)


def test_who_may_not_clean_up_is_asked_to_make_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def command(verb: str, *_: Any) -> None:
        asked.append(verb)
        if verb == "DEL":
            raise Failure(errors.NoPermissionError("can't run this command"), 0.0, "final")

    server: Any = SimpleNamespace(command=command)
    monkeypatch.setattr(permissions, "_refused_channel", lambda server, channel: "")
    assert ["DEL"] == [lack.verb for lack in permissions.lacking(server, "p", lambda key: True)]
    assert "ZRANGE" in asked and not {*asked} & {*permissions._MAKING}


def test_a_command_without_a_name_is_given_no_rule() -> None:
    assert "" == permissions._rule("ERR unknown command 'ZADD'", "ZADD", "p")
    for said in ("No permissions to access a key", "access one of the keys used as arguments"):
        assert "~p:*" == permissions._rule(said, "ZADD", "p")
    assert "&p:*" == permissions._rule("can't access one of the channels", "PUBLISH", "p")
    assert "~p:*" == permissions._rule("no access to one of the keys", "ZADD", "p")
    assert "+zadd" == permissions._rule("can't run this command", "ZADD", "p")


# The command


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_the_exit_code_of_doctor_is_that_of_errors(
    level: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("one", level, "title", "detail"), Finding("two", "ok", "title", "")]
    monkeypatch.setattr(doctor, "examine", lambda using: found)
    try:
        call_command("locks", "doctor", stdout=StringIO())
    except SystemExit as ended:
        assert (1, 1) == (code, ended.code)
    else:
        assert 0 == code


def test_a_channel_that_nobody_answers_for_is_not_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        closed = False

        def __init__(self, pool: Any) -> None: ...

        def subscribe(self, channel: str) -> None:
            raise errors.ConnectionError("gone")

        def close(self) -> None:
            Silent.closed = True

    monkeypatch.setattr(permissions, "PubSub", Silent)
    server: Any = SimpleNamespace(pool=lambda: None)
    with pytest.raises(Failure):
        permissions._refused_channel(server, "p:wake:doctor")
    assert Silent.closed


def test_a_cluster_that_does_not_say_how_it_is_has_no_finding() -> None:
    def refuse() -> None:
        raise Failure(errors.NoPermissionError("CLUSTER"), 0.0, "final")

    server: Any = Answers(CLUSTER_INFO=refuse)
    assert [] == [*servers._cluster(server, {"cluster_enabled": "1"})]


def test_keys_under_the_prefix_of_the_cache_are_none_of_another_tenant(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_prefixes(settings, default=settings.PREFIX, other="ours")
    monkeypatch.setattr(neighbours, "_places", lambda alias: {alias})
    for key, said in (("ours:sync:{x}:leases", "ok"), ("theirs:sync:{x}:leases", "warning")):
        monkeypatch.setattr(neighbours, "server_of", lambda alias, key=key: Answers(RANDOMKEY=key))
        assert said == level(neighbours._shared("other"))


def test_what_a_user_may_do_is_tried_under_the_prefix_of_the_cache(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_prefixes(settings, other="ours")
    tried: list[str] = []
    monkeypatch.setattr(
        permissions, "lacking", lambda server, prefix, has: tried.append(prefix) or []
    )
    server: Any = SimpleNamespace(alias="other")
    assert "ok" == level(servers._permissions(Node("", server, lambda key: True)))
    assert ["ours:sync"] == tried
