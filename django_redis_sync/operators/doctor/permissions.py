"""The rights that a Redis user needs: found in the Lua sources, and tried on keys of our own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from redis.client import PubSub
from redis.exceptions import NoPermissionError

from ...engine.server import Server
from ...engine.wire import REDIS_ERRORS, clock, why
from ...protocol.keys import quote
from ...protocol.scripts import LUA
from ...protocol.steps import Failure

#: Commands that clients send themselves, beside those in scripts.
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
_SENT += ("ZCARD", "ZMSCORE", "ZREMRANGEBYSCORE", "ZREVRANGE")

# Arguments that do nothing but to keys of the probe: z a sorted set, h a hash, l a list.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "DEL": ("z", "h", "l"),
    "PEXPIRE": ("z", 1),
    "BLPOP": ("l", "0.01"),
    "EVAL": ("return 1", 1, "z"),
    "EVALSHA": ("0" * 40, 1, "z"),
    "EXISTS": ("z",),
    "HDEL": ("h", "f"),
    "HGET": ("h", "f"),
    "HGETALL": ("h",),
    "HINCRBY": ("h", "f", 1),
    "HMGET": ("h", "f"),
    "HSCAN": ("h", "0"),
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
    "ZLEXCOUNT": ("z", "-", "+"),
    "ZMSCORE": ("z", "m"),
    "ZRANGE": ("z", 0, 1),
    "ZRANGEBYLEX": ("z", "-", "+"),
    "ZRANGEBYSCORE": ("z", 0, 1),
    "ZRANK": ("z", "m"),
    "ZREM": ("z", "m"),
    "ZREMRANGEBYRANK": ("z", 0, 1),
    "ZREMRANGEBYSCORE": ("z", 0, 1),
    "ZREVRANGE": ("z", 0, 1),
    "ZREVRANGEBYLEX": ("z", "+", "-"),
    "ZSCORE": ("z", "m"),
}
_MAKING = ("HINCRBY", "HSET", "RPUSH", "ZADD")
# Not tried: INFO is the doctor's own, SELECT was done when we connected. Tried as one: the others.
_APART = ("INFO", "SELECT", "SUBSCRIBE", "UNSUBSCRIBE")
# Names that are made up until one lies on the node that is asked: enough for one with 20 slots.
_MAX_TRIES = 5000


@cache
def needed() -> tuple[str, ...]:
    """Every command that a user of this library runs, in a script or not."""
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))
    return tuple(sorted({*_SENT, *re.findall(r"call\('([A-Z]+)'", sources)}))


def rules(prefix: str) -> str:
    """The least ACL, as ACL SETUSER takes it."""
    commands = " ".join(f"+{name.lower()}" for name in needed())
    # Before Redis 7, a new user has all channels, and adding any is an error.
    return f"resetchannels ~{quote(prefix)}:* &{prefix}:* {commands}"


@dataclass(frozen=True, slots=True)
class Lack:
    """A command that was refused. `rule`: for ACL SETUSER; empty where no rule
    helps, because the server has no command of that name: it was renamed or disabled."""

    verb: str
    rule: str


def lacking(server: Server, prefix: str, has: Callable[[str], bool]) -> list[Lack]:
    """The commands this user may not use on our keys there, of which the server `has` some.

    Failure when Redis can't be reached.
    """
    base = _base(prefix)
    for _try in range(_MAX_TRIES):
        if has(base):
            break
        base = _base(prefix)
    names = {part: base + part for part in "zhl"} | {"channel": f"{prefix}:wake:doctor"}
    found: list[Lack] = []
    # DEL, which cleans up, comes before those that make something: without it, nothing is made.
    for verb in sorted({*needed(), *_HARMLESS} - {*_APART}):
        if verb in _MAKING and any(lack.verb == "DEL" for lack in found):
            continue
        words = [names.get(w, w) if isinstance(w, str) else w for w in _HARMLESS[verb]]
        if said := _denial(server, verb, *words):
            found.append(Lack(verb, _rule(said, verb, prefix)))
    _denial(server, "DEL", *(names[part] for part in "zhl"))
    if said := _channel_denial(server, names["channel"]):
        found.append(Lack("SUBSCRIBE", _rule(said, "SUBSCRIBE", prefix)))
    return sorted(found, key=lambda lack: lack.verb)


def _rule(said: str, verb: str, prefix: str) -> str:
    """The missing rules of the least ACL, by the server's answers."""
    if "unknown command" in said:
        return ""
    if "channel" in said:
        return f"&{prefix}:*"
    return f"~{quote(prefix)}:*" if "key" in said else f"+{verb.lower()}"


def _base(prefix: str) -> str:
    return f"{quote(prefix)}:{{doctor-{secrets.token_hex(8)}}}:"


def _denial(server: Server, *words: Any) -> str:
    """Return the server's words if it denies the command, else ""."""
    try:
        server.command(*words)
    except Failure as failure:
        if failure.why != "final":
            raise
        # Renamed or disabled commands are unknown ones; other errors are about the arguments.
        text = str(failure.cause)
        if isinstance(failure.cause, NoPermissionError) or "unknown command" in text:
            return text or "no permission"
    return ""


def _channel_denial(server: Server, channel: str) -> str:
    pubsub = PubSub(server.pool())
    try:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=1.0)
    except NoPermissionError as error:
        return str(error) or "no permission"
    except REDIS_ERRORS as error:
        raise Failure(error, clock(), why(error, True)) from error
    finally:
        pubsub.close()
    return ""
