"""What a Redis user must be allowed: found in the Lua sources, and tried on keys of our own."""

from __future__ import annotations

import re
import secrets
from functools import cache
from typing import Any

from redis.exceptions import NoPermissionError

from .engine import connections
from .engine.wire import REDIS_ERRORS, clock, why
from .protocol.keys import quote
from .protocol.plans import Failure
from .protocol.scripts import LUA

#: What clients send themselves, beside what the scripts call.
_SENT: tuple[str, ...] = (
    "BLPOP",
    "EVAL",
    "EVALSHA",
    "HGETALL",
    "HMGET",
    "INFO",
    "PEXPIRE",
    "PING",
    "SELECT",
)
_SENT += ("SUBSCRIBE", "TIME", "UNSUBSCRIBE", "ZADD", "ZRANGE", "ZREM", "ZREMRANGEBYRANK")
_SENT += ("ZREMRANGEBYSCORE", "ZREVRANGE", "ZSCORE")

# Arguments that do nothing but to keys of the probe: z a sorted set, h a hash, l a list.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "DEL": ("z", "h", "l"),
    "PEXPIRE": ("z", 1),
    "BLPOP": ("l", "0.01"),
    "EVAL": ("return 1", 1, "z"),
    "EVALSHA": ("0" * 40, 1, "z"),
    "EXISTS": ("z",),
    "HDEL": ("h", "f"),
    "HEXISTS": ("h", "f"),
    "HGET": ("h", "f"),
    "HGETALL": ("h",),
    "HINCRBY": ("h", "f", 1),
    "HMGET": ("h", "f"),
    "HSET": ("h", "f", 1),
    "PERSIST": ("z",),
    "PEXPIREAT": ("z", 1),
    "PING": (),
    "PUBLISH": ("channel", ""),
    "RPUSH": ("l", ""),
    "TIME": (),
    "ZADD": ("z", 1, "m"),
    "ZCARD": ("z",),
    "ZCOUNT": ("z", 0, 1),
    "ZRANGE": ("z", 0, 1),
    "ZRANGEBYSCORE": ("z", 0, 1),
    "ZRANK": ("z", "m"),
    "ZREM": ("z", "m"),
    "ZREMRANGEBYRANK": ("z", 0, 1),
    "ZREMRANGEBYSCORE": ("z", 0, 1),
    "ZREVRANGE": ("z", 0, 1),
    "ZSCORE": ("z", "m"),
}
_MAKING = ("HINCRBY", "HSET", "RPUSH", "ZADD")
# Not tried: INFO is the doctor's own, SELECT was done when we connected. Tried as one: the others.
_APART = ("INFO", "SELECT", "SUBSCRIBE", "UNSUBSCRIBE")


@cache
def needed() -> tuple[str, ...]:
    """Every command that a user of this library runs, in a script or not."""
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))
    return tuple(sorted({*_SENT, *re.findall(r"call\('([A-Z]+)'", sources)}))


def rules(prefix: str) -> str:
    """The least ACL, as ACL SETUSER takes it."""
    commands = " ".join(f"+{name.lower()}" for name in needed())
    return f"~{quote(prefix)}:* &{prefix}:* {commands}"


def denied(server: connections.Server, alias: str, prefix: str) -> list[str]:
    """The commands that this user may not run on our keys. Failure when Redis can't be reached."""
    base = f"{quote(prefix)}:{{doctor-{secrets.token_hex(8)}}}:"
    names = {part: base + part for part in "zhl"} | {"channel": f"{prefix}:wake:doctor"}
    found: list[str] = []
    # What cleans up comes first: without it, nothing is made.
    for verb in sorted((set(needed()) | set(_HARMLESS)) - set(_APART), key=_order):
        if verb in _MAKING and "DEL" in found:
            continue
        words = [names.get(w, w) if isinstance(w, str) else w for w in _HARMLESS[verb]]
        if _refused(server, verb, *words):
            found.append(verb)
    _refused(server, "DEL", *(names[part] for part in "zhl"))
    if _may_not_subscribe(alias, names["channel"]):
        found.append("SUBSCRIBE")
    return sorted(found)


def _order(verb: str) -> int:
    return list(_HARMLESS).index(verb)


def _refused(server: connections.Server, *words: Any) -> bool:
    try:
        server.command(*words)
    except Failure as failure:
        if failure.why != "final":
            raise
        # Renamed or disabled commands are unknown ones; other errors are about the arguments.
        text = str(failure.cause)
        return isinstance(failure.cause, NoPermissionError) or "unknown command" in text
    return False


def _may_not_subscribe(alias: str, channel: str) -> bool:
    pubsub = connections.backend_of(alias).get_client(write=True).pubsub()
    try:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=1.0)
    except NoPermissionError:
        return True
    except REDIS_ERRORS as error:
        raise Failure(error, clock(), why(error, True)) from error
    finally:
        pubsub.close()
    return False
