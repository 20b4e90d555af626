"""The doctor's checks of a server. In a Cluster, they run for each node with slots."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...engine.cluster import ClusterServer
from ...engine.server import Server, server_of
from ...engine.wire import clock, decoded
from ...protocol.steps import Failure
from . import permissions

OLDEST_VERSION = (6, 2)
#: Max seconds by which the clocks of the server and of this machine may differ.
MAX_OFFSET = 1.0
#: Seconds of a round trip above which the finding is a warning (SLOW) or an error (TOO_SLOW).
SLOW, TOO_SLOW = 0.01, 0.1
#: Min seconds for the server's option `timeout`, which closes idle connections. A lower value is a
#: warning, but 0 turns the option off.
SHORT_TIMEOUT = 300
_PINGS = 5
#: Fraction of maxmemory above which the memory counts as nearly full.
_FULL = 0.9
_SLOTS = 16384


#: Levels of a finding. "part" means that no problem was found, but only a part was checked.
Level = Literal["ok", "part", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `id`: a fixed word by which scripts recognize the check. `remedy`: ""
    if the level is "ok". `nodes`: the addresses of the nodes of a Cluster with this finding; () if
    all nodes have it.
    """

    id: str
    level: Level
    title: str
    detail: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()

    @classmethod
    def of(cls, id: str, level: Level, title: str, detail: str, remedy: str = "") -> Finding:
        """Return a finding, without the remedy if the level is "ok"."""
        return cls(id, level, title, detail, "" if level == "ok" else remedy)

    @property
    def where(self) -> str:
        """A text that names the nodes with this finding, or "" if `nodes` is empty."""
        return _("On %s.") % ", ".join(self.nodes) if self.nodes else ""


@dataclass(frozen=True, slots=True)
class Node:
    """A server to check. `name`: the address of a node of a Cluster, else "". `has(key)`: True if
    the server stores this key."""

    name: str
    server: Server
    has: Callable[[str], bool]


def nodes_of(alias: str) -> list[Node]:
    """Return the server of an alias, or the current primaries of a Cluster. Raise Failure if no
    node of a Cluster answers."""
    server = server_of(alias)
    if not isinstance(server, ClusterServer):
        return [Node("", server, lambda key: True)]
    topology = server.topology
    topology.look()
    return [
        Node(
            f"{address.host}:{address.port}",
            server.node(address),
            lambda key, address=address: topology.of(key) == address,  # type: ignore[misc]
        )
        for address in sorted(topology.primaries)
    ]


def allowed(server: Server, *words: Any) -> Any:
    """Return the reply to a command, or None if the server rejects the command. Raise Failure if
    the server can't be reached."""
    try:
        return decoded(server.command(*words))
    except Failure as failure:
        if failure.why != "final":
            raise
        return None


def _latency(node: Node) -> Iterator[Finding]:
    spent = []
    for _i in range(_PINGS):
        start = clock()
        node.server.command("PING")
        spent.append(clock() - start)
    median = statistics.median(spent)
    level: Level = "error" if median > TOO_SLOW else "warning" if median > SLOW else "ok"
    title = _("Round trip: %.1f ms") % (median * 1000)
    detail = (
        _("The median of %d tries. Each acquire and each release takes one round trip.") % _PINGS
    )
    remedy = _("Use a nearer server, or look for slow commands with SLOWLOG.")
    yield Finding.of("latency", level, title, detail, remedy)


def _clock(node: Node) -> Iterator[Finding]:
    before = time.time()
    seconds, micros = node.server.command("TIME")
    offset = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    level: Level = "warning" if abs(offset) > MAX_OFFSET else "ok"
    title = _("The server's clock agrees with this machine's")
    if level != "ok":
        title = _("The server's clock is %+.1f s off this machine's") % offset
    detail = _("A difference affects fencing tokens and the times shown, but not leases.")
    remedy = _("Synchronize both clocks with NTP, and never set the server's clock back.")
    yield Finding.of("clock", level, title, detail, remedy)


def _permissions(node: Node) -> Iterator[Finding]:
    prefix = conf.current().prefix(node.server.alias)
    lacks = permissions.lacking(node.server, prefix, node.has)
    if not lacks:
        title = _("The Redis user has all required permissions")
        yield Finding("acl", "ok", title, _("Each command was tried."))
        return
    rules = dict.fromkeys(rule for rule in lacks.values() if rule)
    unknown = [verb for verb, rule in lacks.items() if not rule]
    remedies = (
        [_("To grant the permissions, run: ACL SETUSER <user> %s") % " ".join(rules)]
        if rules
        else []
    )
    if unknown:
        text = _("The server has no command %s. Check for renamed or disabled commands.")
        remedies.append(text % ", ".join(unknown))
    title, detail = _("The Redis user lacks required permissions"), _("Denied: %s.")
    yield Finding("acl", "error", title, detail % ", ".join(lacks), " ".join(remedies))


def _by_info(node: Node) -> Iterator[Finding]:
    reply = allowed(node.server, "INFO")
    if reply is None:
        title = _("The server can't be examined")
        detail = _("This user may not run INFO: version, memory and persistence are unknown.")
        remedy = _("Run: ACL SETUSER <user> +info. Or run the doctor with another user.")
        yield Finding("info", "warning", title, detail, remedy)
        return

    def option(name: str) -> Any:
        """Return the value of an option of the server's configuration, or None if the user may not
        read it."""
        found = allowed(node.server, "CONFIG", "GET", name)
        return dict(found).get(name) if isinstance(found, dict) else (found or [None, None])[1]

    info = _parsed(reply)
    yield from judge(info, option)
    if info.get("cluster_enabled") == "1":
        yield from judge_cluster(_parsed(allowed(node.server, "CLUSTER", "INFO") or ""))


def _parsed(reply: Any) -> dict[str, str]:
    pairs = [line.partition(":") for line in str(reply).splitlines()]
    return {key: value.strip() for key, colon, value in pairs if colon}


def judge(info: Mapping[str, str], option: Callable[[str], Any]) -> Iterator[Finding]:
    """Yield the findings about a server. `info`: the fields of the server's reply to INFO.
    `option(name)`: returns the value of an option of the server's configuration, or None."""
    yield _version(info)
    if info.get("role") == "slave":
        detail = _("A replica does not accept writes, so no permits can be granted.")
        remedy = _("Set LOCATION to the primary, or use Sentinel, which finds the primary.")
        yield Finding("role", "error", _("This server is a replica"), detail, remedy)
    yield _eviction(info)
    yield _persistence(info, option)
    seconds = int(option("timeout") or 0)
    if 0 < seconds < SHORT_TIMEOUT:
        title = _("The server closes connections that are idle for %d s") % seconds
        detail = _("The next command on such a connection fails and is sent again on a new one.")
        remedy = _("Set timeout 0, or more than %d, in the server's configuration.") % SHORT_TIMEOUT
        yield Finding("timeout", "warning", title, detail, remedy)


def _version(info: Mapping[str, str]) -> Finding:
    text, own = info.get("redis_version", ""), info.get("valkey_version")
    numbers = [int(part) for part in text.split(".")[:2] if part.isdecimal()]
    level: Level = "error" if numbers and tuple(numbers) < OLDEST_VERSION else "ok"
    title = _("Version: %s") % (f"Valkey {own}" if own else f"Redis {text}")
    detail = _("Redis 6.2 or newer, or Valkey, is required.")
    return Finding.of("version", level, title, detail, _("Upgrade the server."))


def _eviction(info: Mapping[str, str]) -> Finding:
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    level: Level = "ok"
    title, detail = _("Memory policy: %s") % policy, _("No lease is ever evicted.")
    remedy = _("Raise maxmemory, or move other data to another server.")
    if policy != "noeviction":
        level = "error" if limit else "warning"
        detail = _("maxmemory is not set. If it is set, a full server will evict leases.")
        if limit:
            detail = _("A full server evicts leases, and their permits are granted again.")
        remedy = _("Use a separate server with maxmemory-policy noeviction.")
    elif limit and used >= limit:
        level, title = "error", _("Memory is full: %d %%") % (100 * used // limit)
        detail = _("No permits are granted; releases still work.")
    elif limit and used > limit * _FULL:
        level, title = "warning", _("Memory is nearly full: %d %%") % (100 * used // limit)
        detail = _("A full server grants no permits; releases still work.")
    return Finding.of("eviction", level, title, detail, remedy)


def _persistence(info: Mapping[str, str], option: Callable[[str], Any]) -> Finding:
    level: Level = "ok"
    title, remedy = _("Persistence: AOF"), ""
    detail = _("Leases, fencing tokens, and operators' overrides survive a restart.")
    if info.get("aof_enabled") != "1":
        level = "warning"
        title = _("Persistence: none") if option("save") == "" else _("Persistence: no AOF")
        detail = _("A restart loses leases: permits are granted again while holders still work.")
        detail += " " + _("Pauses and resized limits are lost too.")
        remedy = _("Set appendonly yes and appendfsync everysec.")
    elif info.get("aof_last_write_status", "ok") != "ok":
        level, title = "error", _("The append-only file can't be written")
        remedy = _("See the server's log, and check that its disk is not full.")
    elif option("appendfsync") == "no":
        level, title = "warning", _("Persistence: AOF, but appendfsync is no")
        detail = _("A power failure can lose the writes of the last 30 seconds.")
        remedy = _(
            "Set appendfsync to always, or to everysec, which can lose one second of writes."
        )
    return Finding("persistence", level, title, detail, remedy)


def judge_cluster(state: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the finding about a Cluster. `state`: the fields of the Cluster's reply to CLUSTER
    INFO. If `state` is empty, yield nothing."""
    if not state:
        return
    failing = _SLOTS - int(state.get("cluster_slots_ok", _SLOTS))
    nodes = int(state.get("cluster_known_nodes", 0))
    is_ok = state.get("cluster_state") == "ok"
    level: Level = "error" if not is_ok else "warning" if failing else "ok"
    slots = ngettext("%d slot without a node.", "%d slots without a node.", failing) % failing
    detail = ngettext("%d node", "%d nodes", nodes) % nodes + "; " + slots
    remedy = _("Names in these slots can't be acquired. See redis-cli --cluster check.")
    title = _("Cluster: %s") % state.get("cluster_state", "?")
    yield Finding.of("cluster", level, title, detail, remedy)


#: The checks of each node, by id. If a check can't be completed, the finding has this id.
def _scripts(node: Node) -> Iterator[Finding]:
    """Yield a finding only if the server is an imitation of Redis that can't run the scripts."""
    if allowed(node.server, "EVAL", "return type(struct)", 0) == "nil":
        title = _("The server can't run the scripts")
        detail = _("Its Lua has no library struct: this is an imitation, such as fakeredis.")
        remedy = _("Use Redis or Valkey. In tests, use django_redis_sync.testing.without_redis().")
        yield Finding("scripts", "error", title, detail, remedy)


CHECKS: dict[str, Callable[[Node], Iterator[Finding]]] = {
    "latency": _latency,
    "scripts": _scripts,
    "clock": _clock,
    "acl": _permissions,
    "info": _by_info,
}
