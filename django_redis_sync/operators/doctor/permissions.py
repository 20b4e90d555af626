"""Find the permissions that a Redis user needs, and those that it lacks. The Lua sources show which
commands are needed. The doctor tries the commands on a key of its own, so that they do no harm."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from redis.exceptions import NoPermissionError

from ...engine.pools import CheckedOut, PrivatePool
from ...engine.server import Server
from ...engine.wire import ATTEMPT, pack
from ...protocol.keys import quote
from ...protocol.scripts import LUA
from ...protocol.steps import Failure

#: Commands that clients send outside of scripts.
_SENT = (
    "BLPOP EVAL EVALSHA HGETALL HMGET INFO PEXPIRE PING SELECT SUBSCRIBE TIME UNSUBSCRIBE ZADD "
    "ZCARD ZMSCORE ZRANGE ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE"
)
#: The commands to try, by their arguments. "key" and "channel" are replaced by a key and a channel
#: of the doctor. A command counts as permitted if it succeeds, or if its error is only about an
#: argument or the type of the key.
_TRIES: dict[tuple[Any, ...], str] = {
    (): "PING TIME",
    ("key",): "DEL EXISTS HGETALL PERSIST ZCARD",
    (
        "key",
        "0.01",
    ): "BLPOP HDEL HGET HMGET HSCAN PEXPIRE PEXPIREAT RPUSH ZMSCORE ZRANK ZREM ZSCORE",
    ("key", 0, 1): "HINCRBY HSET ZADD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE "
    "ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX",
    ("channel", ""): "PUBLISH",
    ("return 1", 1, "key"): "EVAL",
    ("0" * 40, 1, "key"): "EVALSHA",
}
#: Commands that create the test key. They are not tried if the user may not delete this key.
_MAKING = ("HINCRBY", "HSET", "RPUSH", "ZADD")
#: Max random keys that are tried to find a key on a certain node of a Cluster. This is enough for a
#: node with 20 slots or more.
_MAX_TRIES = 5000


#: Characters that an ACL rule can't contain, or that are special in a rule. If a prefix has such a
#: character, the rule has "?" instead, which matches any character.
_SPECIAL = re.compile(r"[\s*?\[\]\\]")


@cache
def needed() -> tuple[str, ...]:
    """Return all commands that the library sends, in scripts and outside of them."""
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))
    return tuple(sorted({*_SENT.split(), *re.findall(r"call\('([A-Z]+)'", sources)}))


def rules(prefix: str) -> str:
    """Return the ACL rules that the library needs and no others, as arguments of ACL SETUSER.
    `prefix`: the prefix of the library's keys."""
    commands = " ".join(f"+{name.lower()}" for name in needed())
    # Before Redis 7, a new user may use all channels, and a rule for one channel is an error. So
    # remove all channels first (resetchannels).
    return f"resetchannels {_keys_rule(prefix)} {_channels_rule(prefix)} {commands}"


def _keys_rule(prefix: str) -> str:
    return f"~{_SPECIAL.sub('?', quote(prefix))}:*"


def _channels_rule(prefix: str) -> str:
    return f"&{_SPECIAL.sub('?', prefix)}:*"


def lacking(server: Server, prefix: str, has: Callable[[str], bool]) -> dict[str, str]:
    """Return the commands that the user may not run, each with the missing rule for ACL SETUSER.
    The rule is "" if the server does not know the command, because it was renamed or disabled.

    `prefix`: the prefix of the library's keys. `has(key)`: True if the key is on this server. Raise
    Failure if Redis can't be reached.
    """
    bases = (f"{quote(prefix)}:{{doctor-{secrets.token_hex(8)}}}:" for _try in range(_MAX_TRIES))
    names = {"key": next(filter(has, bases), ""), "channel": f"{prefix}:wake:doctor"}
    found: dict[str, str] = {}
    # DEL is tried before the commands that create the key.
    for words, verbs in _TRIES.items():
        for verb in verbs.split():
            if verb in needed() and not (verb in _MAKING and found.get("DEL")):
                given = [names.get(word, word) for word in words]
                found[verb] = _denial(partial(server.command, verb, *given))
    _denial(partial(server.command, "DEL", names["key"]))
    found["SUBSCRIBE"] = _denial(partial(_subscribe, server, names["channel"]))
    return {verb: _rule(text, verb, prefix) for verb, text in sorted(found.items()) if text}


def _rule(message: str, verb: str, prefix: str) -> str:
    """Return the ACL rule that is missing according to the server's error message. Return "" if the
    server does not know the command."""
    if "unknown command" in message:
        return ""
    if "channel" in message:
        return _channels_rule(prefix)
    return _keys_rule(prefix) if "key" in message else f"+{verb.lower()}"


def _denial(ask: Callable[[], Any]) -> str:
    """Run a command. Return the server's error message if it denies the command, else ""."""
    try:
        ask()
    except Failure as failure:
        if failure.why != "final":
            raise
        # If the command is unknown, it was renamed or disabled. Any other error is about the
        # arguments, so the command is permitted.
        text = str(failure.cause)
        if isinstance(failure.cause, NoPermissionError) or "unknown command" in text:
            return text or "no permission"
    return ""


def _subscribe(server: Server, channel: str) -> None:
    """Subscribe on a connection of its own. redis-py's PubSub can't use each pool: it fails if the
    pool has a client-side cache."""
    own = PrivatePool(server.pool())
    try:
        with CheckedOut(own, ATTEMPT) as borrowed:
            # In RESP3, the reply to SUBSCRIBE is a push, which redis-py skips.
            borrowed.send_several((pack(("SUBSCRIBE", channel)), pack(("PING",))))
            borrowed.read()
    finally:
        own.close_idle()
