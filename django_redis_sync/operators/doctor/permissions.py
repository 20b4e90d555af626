"""The permissions that a Redis user needs: found in the Lua sources, and tried with harmless
commands on keys of the doctor."""

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

#: Commands that clients send outside of scripts.
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

# Arguments that affect only the doctor's keys: z a sorted set, h a hash, l a list.
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
#: Commands that create keys.
_MAKING = ("HINCRBY", "HSET", "RPUSH", "ZADD")
#: Commands without a try of their own. INFO has its own check, SELECT was sent on connect, and the
#: other two are tried together.
_APART = ("INFO", "SELECT", "SUBSCRIBE", "UNSUBSCRIBE")
#: Max random names that are tried to find one on a node of a Cluster. Enough for a node with 20
#: slots.
_MAX_TRIES = 5000


@cache
def needed() -> tuple[str, ...]:
    """Return all commands that the Redis user runs, in scripts and outside of them."""
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))
    return tuple(sorted({*_SENT, *re.findall(r"call\('([A-Z]+)'", sources)}))


def rules(prefix: str) -> str:
    """Return the least ACL, as arguments of ACL SETUSER. `prefix`: that of the keys."""
    commands = " ".join(f"+{name.lower()}" for name in needed())
    # Before Redis 7, a new user has access to all channels, and adding one is an error.
    return f"resetchannels ~{quote(prefix)}:* &{prefix}:* {commands}"


@dataclass(frozen=True, slots=True)
class Lack:
    """A command that was denied. `rule`: the missing rule for ACL SETUSER, or "" if the server has
    no command of that name, because it was renamed or disabled."""

    verb: str
    rule: str


def lacking(server: Server, prefix: str, has: Callable[[str], bool]) -> list[Lack]:
    """Return the commands that the user may not run on keys with this prefix. `has(key)`: True if
    the key is on this server. Raise Failure if Redis can't be reached."""
    base = _base(prefix)
    for _try in range(_MAX_TRIES):
        if has(base):
            break
        base = _base(prefix)
    names = {part: base + part for part in "zhl"} | {"channel": f"{prefix}:wake:doctor"}
    found: list[Lack] = []
    # DEL is tried before the commands that create keys. If it is denied, they are not tried.
    for verb in sorted({*needed(), *_HARMLESS} - {*_APART}):
        if verb in _MAKING and any(lack.verb == "DEL" for lack in found):
            continue
        words = [names.get(w, w) if isinstance(w, str) else w for w in _HARMLESS[verb]]
        if message := _denial(server, verb, *words):
            found.append(Lack(verb, _rule(message, verb, prefix)))
    _denial(server, "DEL", *(names[part] for part in "zhl"))
    if message := _channel_denial(server, names["channel"]):
        found.append(Lack("SUBSCRIBE", _rule(message, "SUBSCRIBE", prefix)))
    return sorted(found, key=lambda lack: lack.verb)


def _rule(message: str, verb: str, prefix: str) -> str:
    """Return the missing rule of the least ACL, by the server's error message."""
    if "unknown command" in message:
        return ""
    if "channel" in message:
        return f"&{prefix}:*"
    return f"~{quote(prefix)}:*" if "key" in message else f"+{verb.lower()}"


def _base(prefix: str) -> str:
    return f"{quote(prefix)}:{{doctor-{secrets.token_hex(8)}}}:"


def _denial(server: Server, *words: Any) -> str:
    """Return the server's error message if it denies the command, else ""."""
    try:
        server.command(*words)
    except Failure as failure:
        if failure.why != "final":
            raise
        # A renamed or disabled command is unknown. Other errors are about the arguments.
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
