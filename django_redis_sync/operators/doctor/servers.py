"""The looks at each server: the only one, or every node of a Cluster with slots."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...engine.cluster import Address, ClusterServer
from ...engine.commands import decoded
from ...engine.server import Server, server_of
from ...engine.wire import clock
from ...protocol.plans import Failure
from . import permissions
from .findings import Finding, Level

OLDEST_VERSION = (6, 2)
#: Seconds: a clock that is further off, an answer that takes longer (warning, error).
MOST_OFFSET, SLOW, TOO_SLOW = 1.0, 0.01, 0.1
_PINGS = 10
_FULL = 0.9
_SLOTS = 16384


@dataclass(frozen=True, slots=True)
class Node:
    """A server, by its address in a Cluster; `has`: whether a key lies on it."""

    name: str
    server: Server
    has: Callable[[str], bool]


def nodes_of(alias: str) -> list[Node]:
    """The server of an alias, or its primaries now. Failure when none answers."""
    server = server_of(alias)
    if not isinstance(server, ClusterServer):
        return [Node("", server, lambda key: True)]
    server.topology.look()
    return [_node(server, address) for address in sorted(server.topology.primaries)]


def _node(server: ClusterServer, address: Address) -> Node:
    return Node(
        f"{address.host}:{address.port}",
        server.node(address),
        lambda key: server.topology.of(key) == address,
    )


def _by_info(node: Node) -> Iterator[Finding]:
    info = _info(node.server)
    if info is None:
        yield _blind()
        return
    for look in (_version, _role, _eviction, _persistence, _cluster):
        yield from look(node.server, info)


def _info(server: Server) -> dict[str, str] | None:
    """The reply of INFO; None when this user may not ask."""
    reply = allowed(server, "INFO")
    if reply is None:
        return None
    pairs = [line.partition(":") for line in str(reply).splitlines()]
    return {key: value.strip() for key, colon, value in pairs if colon}


def allowed(server: Server, *words: Any) -> Any:
    """The reply, or None when the server refuses the command. Failure when it can't be reached."""
    try:
        return decoded(server.command(*words))
    except Failure as failure:
        if failure.why != "final":
            raise
        return None


def _blind() -> Finding:
    return Finding(
        "info",
        "warning",
        _("The server can't be examined"),
        _("This user may not run INFO: version, memory and persistence are unknown."),
        _("Allow it: ACL SETUSER <user> +info. Or run the doctor with a user that may."),
    )


def _latency(node: Node) -> Iterator[Finding]:
    spent = []
    for _i in range(_PINGS):
        start = clock()
        node.server.command("PING")
        spent.append(clock() - start)
    median = statistics.median(spent)
    level: Level = "error" if median > TOO_SLOW else "warning" if median > SLOW else "ok"
    yield Finding(
        "latency",
        level,
        _("Round trip: %.1f ms") % (median * 1000),
        _("The median of %d. Each acquire and each release takes one.") % _PINGS,
        _("Use a nearer server, or see SLOWLOG for what holds it up.") if level != "ok" else "",
    )


def _clock(node: Node) -> Iterator[Finding]:
    before = time.time()
    seconds, micros = node.server.command("TIME")
    offset = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    off = abs(offset) > MOST_OFFSET
    yield Finding(
        "clock",
        "warning" if off else "ok",
        _("The server's clock is %+.1f s off this machine's") % offset
        if off
        else _("The server's clock agrees with this machine's"),
        _("No lease depends on it, but fences and times shown are the server's."),
        _("Have both follow NTP, and never set the server's clock back.") if off else "",
    )


def _permissions(node: Node) -> Iterator[Finding]:
    prefix = conf.current().prefix(node.server.alias)
    lacks = permissions.lacking(node.server, prefix, node.has)
    if not lacks:
        yield Finding(
            "acl", "ok", _("This user may do all that is needed"), _("Each command was tried.")
        )
        return
    rules = dict.fromkeys(lack.rule for lack in lacks if lack.rule)
    unknown = [lack.verb for lack in lacks if not lack.rule]
    remedies = (
        [_("Give it what it lacks: ACL SETUSER <user> %s") % " ".join(rules)] if rules else []
    )
    if unknown:
        said = _("Not there at all: %s. Was it renamed or disabled in the server's configuration?")
        remedies.append(said % ", ".join(unknown))
    yield Finding(
        "acl",
        "error",
        _("This user may not do all that is needed"),
        _("Refused: %s.") % ", ".join(lack.verb for lack in lacks),
        " ".join(remedies),
    )


def _version(server: Server, info: Mapping[str, str]) -> Iterator[Finding]:
    text = info.get("redis_version", "")
    own = info.get("valkey_version")
    shown = f"Valkey {own}" if own else f"Redis {text}"
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        version = OLDEST_VERSION
    old = version < OLDEST_VERSION
    yield Finding(
        "version",
        "error" if old else "ok",
        _("Version: %s") % shown,
        _("Needed: Redis 6.2 or newer, or Valkey."),
        _("Upgrade the server.") if old else "",
    )


def _role(server: Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(
            "role",
            "error",
            _("This server is a replica"),
            _("It takes no writes: nothing can be acquired here."),
            _("Have LOCATION name the primary, or use Sentinel, which finds it."),
        )


def _eviction(server: Server, info: Mapping[str, str]) -> Iterator[Finding]:
    policy, most = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy != "noeviction":
        yield Finding(
            "eviction",
            "error" if most else "warning",
            _("Memory policy: %s") % policy,
            _("A full server evicts leases, and tells nobody: two holders at a time.")
            if most
            else _("There is no maxmemory yet. With one, a full server would evict leases."),
            _("Use a server of its own with maxmemory-policy noeviction."),
        )
        return
    used = int(info.get("used_memory", 0))
    if most and used >= most:
        yield Finding(
            "eviction",
            "error",
            _("Memory is full: %d %%") % (100 * used // most),
            _("Nothing is granted any more; releases still work."),
            _("Raise maxmemory, or move what else is on it elsewhere."),
        )
        return
    if most and used > most * _FULL:
        yield Finding(
            "eviction",
            "warning",
            _("Memory is nearly full: %d %%") % (100 * used // most),
            _("A full server grants nothing more; releases still work."),
            _("Raise maxmemory, or move what else is on it elsewhere."),
        )
        return
    yield Finding("eviction", "ok", _("Memory policy: %s") % policy, _("No lease is ever evicted."))


def _persistence(server: Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("aof_enabled") == "1":
        failed = info.get("aof_last_write_status", "ok") != "ok"
        if not failed and _configured(server, "appendfsync") == "no":
            yield Finding(
                "persistence",
                "warning",
                _("Persistence: AOF, but the system writes it when it likes"),
                _("appendfsync is no: after a power failure the last half minute is forgotten."),
                _("Set appendfsync everysec, which forgets a second, or always."),
            )
            return
        yield Finding(
            "persistence",
            "error" if failed else "ok",
            _("The append-only file can't be written") if failed else _("Persistence: AOF"),
            _("A restart keeps leases, fences and an operator's marks."),
            _("See the server's log: is its disk full?") if failed else "",
        )
        return
    yield Finding(
        "persistence",
        "warning",
        _("Persistence: none") if _configured(server, "save") == "" else _("Persistence: no AOF"),
        _("A restart forgets leases: others get in while their holders still work.")
        + " "
        + _("Pauses and resized limits are forgotten too."),
        _("Set appendonly yes and appendfsync everysec."),
    )


def _configured(server: Server, option: str) -> Any:
    """An option of the server's configuration; None where this user may not ask."""
    reply = allowed(server, "CONFIG", "GET", option)
    return dict(reply).get(option) if isinstance(reply, dict) else (reply or [None, None])[1]


def _cluster(server: Server, info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("cluster_enabled") != "1":
        return
    reply = str(allowed(server, "CLUSTER", "INFO") or "")
    state = dict(line.strip().split(":", 1) for line in reply.splitlines() if ":" in line)
    if not state:
        return
    failing = _SLOTS - int(state.get("cluster_slots_ok", _SLOTS))
    down = state.get("cluster_state") != "ok"
    level: Level = "error" if down else "warning" if failing else "ok"
    nodes = int(state.get("cluster_known_nodes", 0))
    yield Finding(
        "cluster",
        level,
        _("Cluster: %s") % state.get("cluster_state", "?"),
        ngettext("%d node", "%d nodes", nodes) % nodes
        + "; "
        + ngettext("%d slot without a node.", "%d slots without a node.", failing) % failing,
        _("See redis-cli --cluster check; names in these slots can't be acquired.")
        if level != "ok"
        else "",
    )


#: The looks at each node, by the id of the finding when a look fails.
LOOKS: dict[str, Callable[[Node], Iterator[Finding]]] = {
    "latency": _latency,
    "clock": _clock,
    "acl": _permissions,
    "info": _by_info,
}
