"""An imitation of Redis in Python. It has only the commands that the scripts use."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from django_redis_sync.protocol import scripts

#: A hashable copy of a `Store`: a tuple (key, type, items, expiry in ms or None) for each key.
Frozen = tuple[tuple[str, str, tuple[Any, ...], int | None], ...]

_PRELUDE = """
local tuple_of, struct_pack, struct_unpack = ...
redis = {call = function(...) return tuple_of(...) end}
struct = {pack = struct_pack, unpack = struct_unpack}
redis.pcall = function(...)
  local done, reply = pcall(tuple_of, ...)
  if done then return reply end
  return {err = reply}
end
setmetatable(_G, {
  __newindex = function(_, name) error('Script attempted to create global variable ' .. name) end,
  __index = function(_, name) error('Script attempted to access nonexistent global ' .. name) end,
})
"""


#: `_DENIED`: commands that fail while the memory is full, unless the same script has already
#: written something. `WRITES`: all commands that write.
_DENIED = {"HINCRBY", "HSET", "RPUSH", "ZADD"}
WRITES = _DENIED | {"DEL", "HDEL", "PERSIST", "PEXPIREAT", "ZREM"}
_EMPTY: dict[str, type[Any]] = {"h": dict, "z": dict, "l": list}


class ScriptError(Exception):
    """Raised if a script fails. As on a real server, its earlier writes remain."""


def number(value: float) -> str:
    """Return a number in the format of a Redis score."""
    if value == math.inf:
        return "inf"
    return str(int(value)) if value == int(value) else f"{value:.17g}"


def _text(arg: Any) -> str:
    if type(arg) in (int, float):
        return number(arg)
    raise ScriptError("Lua redis lib command arguments must be strings or integers")


def _kinds(layout: str) -> list[str]:
    """Return the kinds of the values in a layout, such as "<dI4"."""
    return [kind[0] for kind in re.findall(r"I4|c0|\w", layout)]


def _pack(layout: str, *values: Any) -> str:
    """Pack bytes, whole numbers, doubles, and texts like the server's struct.pack. Append a zero
    byte to each text, except with the format c0."""
    packed = b""
    for kind, value in zip(_kinds(layout), values, strict=True):
        if kind in "sc":
            packed += value.encode("latin-1") + b"\0" * (kind == "s")
        else:
            packed += struct.pack(f"<{kind}", float(value) if kind == "d" else int(value))
    return packed.decode("latin-1")


def _unpack(layout: str, text: str, start: float = 1) -> tuple[Any, ...]:
    """Return the values from position `start` on, and then the position after them, like the
    server's struct.unpack."""
    packed, at, values = text.encode("latin-1"), int(start) - 1, []
    for kind in _kinds(layout):
        if kind == "s":
            end = packed.index(b"\0", at)
            values.append(packed[at:end].decode("latin-1"))
            at = end + 1
        else:
            values += struct.unpack_from(f"<{kind}", packed, at)
            at += struct.calcsize(f"<{kind}")
    return (*values, at + 1)


class Store:
    """The data of the server while one command or script runs."""

    def __init__(self, frozen: Frozen, micros: int, full: bool = False) -> None:
        self.micros, self.full = micros, full
        now = micros // 1000
        self.data: dict[str, tuple[str, Any, int | None]] = {
            key: (kind, _EMPTY[kind](items), expiry)
            for key, kind, items, expiry in frozen
            if expiry is None or expiry >= now  # as in Redis, a key has expired if now > expiry
        }
        self.published: list[tuple[str, str]] = []

    def freeze(self) -> Frozen:
        return tuple(
            (key, kind, tuple(value) if kind == "l" else tuple(sorted(value.items())), expiry)
            for key, (kind, value, expiry) in sorted(self.data.items())
        )

    def call(self, *args: Any) -> Any:
        """Run a command. Return the reply as Lua gets it: a list for a table, and False for nil."""
        name, *rest = [arg if type(arg) is str else _text(arg) for arg in args]
        command = getattr(self, "_" + name.lower(), None)
        if command is None:
            raise ScriptError(f"the imitation of Redis has no command {name}")
        if self.full and name in _DENIED:
            raise ScriptError("OOM command not allowed when used memory > 'maxmemory'")
        self.full = self.full and name not in WRITES
        return command(*rest)

    # Access

    def _get(self, key: str, kind: str) -> Any:
        found = self.data.get(key)
        if found is None:
            return _EMPTY[kind]()
        if found[0] != kind:
            raise ScriptError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return found[1]

    def make(self, key: str, kind: str) -> Any:
        value = self._get(key, kind)
        self.data.setdefault(key, (kind, value, None))
        return value

    def discard(self, key: str, kind: str, members: Sequence[str]) -> int:
        value = self._get(key, kind)
        count = sum(value.pop(member, None) is not None for member in members)
        if not value:
            self.data.pop(key, None)
        return count

    def _time(self) -> list[str]:
        return [str(self.micros // 1_000_000), str(self.micros % 1_000_000)]

    def _publish(self, channel: str, message: str) -> int:
        self.published.append((channel, message))
        return 1

    # Keys

    def _del(self, *keys: str) -> int:
        return sum(self.data.pop(key, None) is not None for key in keys)

    def _exists(self, *keys: str) -> int:
        return sum(key in self.data for key in keys)

    def _pexpireat(self, key: str, at: str) -> int:
        if not at.isdigit():
            raise ScriptError("value is not an integer or out of range")
        if key not in self.data:
            return 0
        if int(at) <= self.micros // 1000:
            del self.data[key]
        else:
            self.data[key] = (*self.data[key][:2], int(at))
        return 1

    def _persist(self, key: str) -> int:
        if key not in self.data or self.data[key][2] is None:
            return 0
        self.data[key] = (*self.data[key][:2], None)
        return 1

    # Hashes and lists

    def _hget(self, key: str, field: str) -> Any:
        return self._get(key, "h").get(field, False)

    def _hmget(self, key: str, *fields: str) -> list[Any]:
        return [self._get(key, "h").get(field, False) for field in fields]

    def _hscan(self, key: str, cursor: str, *options: str) -> list[Any]:
        """Return all matches in one reply, as Redis does for a small hash. The pattern must be
        a prefix and `*`."""
        beginning = options[options.index("MATCH") + 1].removesuffix("*")
        found = [pair for pair in self._get(key, "h").items() if pair[0].startswith(beginning)]
        return ["0", [text for pair in found for text in pair]]

    def _hgetall(self, key: str) -> list[str]:
        return [text for pair in self._get(key, "h").items() for text in pair]

    def _hset(self, key: str, *pairs: str) -> int:
        value = self.make(key, "h")
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(value) - before

    def _hincrby(self, key: str, field: str, by: str) -> int:
        value = self.make(key, "h")
        value[field] = str(int(value.get(field, 0)) + int(by))
        return int(value[field])

    def _hdel(self, key: str, *fields: str) -> int:
        return self.discard(key, "h", fields)

    def _rpush(self, key: str, *items: str) -> int:
        value = self.make(key, "l")
        value.extend(items)
        return len(value)

    def _lpop(self, key: str) -> Any:
        value = self._get(key, "l")
        item = value.pop(0) if value else False
        if not value:
            self.data.pop(key, None)
        return item

    # Sorted sets

    def order(self, key: str) -> list[tuple[str, float]]:
        return sorted(self._get(key, "z").items(), key=lambda item: (item[1], item[0]))

    def _zadd(self, key: str, *pairs: str) -> int:
        value = self.make(key, "z")
        before = len(value)
        value.update(zip(pairs[1::2], map(float, pairs[::2]), strict=True))
        return len(value) - before

    def _zrem(self, key: str, *members: str) -> int:
        return self.discard(key, "z", members)

    def _zcard(self, key: str) -> int:
        return len(self._get(key, "z"))

    def _zscore(self, key: str, member: str) -> Any:
        score = self._get(key, "z").get(member)
        return False if score is None else number(score)

    def _zrank(self, key: str, member: str) -> Any:
        members = [m for m, _ in self.order(key)]
        return members.index(member) if member in members else False

    def rows(self, rows: list[tuple[str, float]], options: Sequence[str]) -> list[str]:
        if "LIMIT" in options:
            offset, count = map(int, options[options.index("LIMIT") + 1 :][:2])
            rows = rows[offset:][:count]
        if "WITHSCORES" in options:
            return [text for member, score in rows for text in (member, number(score))]
        return [member for member, _ in rows]

    def _zrange(self, key: str, first: str, last: str, *options: str) -> Any:
        rows = self.order(key)
        return self.rows(rows[int(first) : int(last) + 1 or len(rows)], options)

    def _zrevrange(self, key: str, first: str, last: str, *options: str) -> Any:
        rows = self.order(key)[::-1]
        return self.rows(rows[int(first) : int(last) + 1 or len(rows)], options)

    def between(self, key: str, low: str, high: str) -> list[tuple[str, float]]:
        """Return the members whose scores are from `low` to `high`, with their scores. If `low`
        begins with "(", return only members with higher scores."""
        least, most = float(low.removeprefix("(")), float(high)
        rows = [row for row in self.order(key) if least <= row[1] <= most]
        return [row for row in rows if row[1] > least] if low.startswith("(") else rows

    def _zrangebyscore(self, key: str, low: str, high: str, *options: str) -> Any:
        return self.rows(self.between(key, low, high), options)

    def _zcount(self, key: str, low: str, high: str) -> int:
        return len(self.between(key, low, high))

    def between_lex(self, key: str, low: str, high: str) -> list[tuple[str, float]]:
        """Return the members between two bounds, with their scores. All scores must be equal.

        `low`: "[MEMBER" to include this member, "(MEMBER" to exclude it, or "-" for no bound.
        `high`: "(MEMBER" to exclude this member, or "+" for no bound."""
        assert low[0] in "[(-" and high[0] in "(+", (low, high)
        rows = [row for row in self.order(key) if high == "+" or row[0] < high[1:]]
        return [row for row in rows if row[0] > low[1:] or (low[0] == "[" and row[0] == low[1:])]

    def _zrangebylex(self, key: str, low: str, high: str, *options: str) -> Any:
        return self.rows(self.between_lex(key, low, high), options)

    def _zrevrangebylex(self, key: str, high: str, low: str, *options: str) -> Any:
        return self.rows(self.between_lex(key, low, high)[::-1], options)

    def _zlexcount(self, key: str, low: str, high: str) -> int:
        return len(self.between_lex(key, low, high))


class Scripts:
    """The scripts, each compiled once into a function of KEYS and ARGV."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        lua51 = pytest.importorskip("lupa.lua51", reason="lupa has no wheel for this Python")
        self.failures = lua51.LuaError
        # In Latin-1, each byte of packed data is one character.
        self.lua = lua51.LuaRuntime(
            encoding="latin-1",
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
        )
        self.store: Store | None = None
        self.lua.execute(_PRELUDE, self._call, _pack, _unpack)
        self.verbs = {
            verb: self.lua.eval(f"function(KEYS, ARGV)\n{source}\nend")
            for verb, source in sources.items()
        }

    def _call(self, *args: Any) -> Any:
        assert self.store is not None
        return self.lua_value(self.store.call(*args))

    def lua_value(self, reply: Any) -> Any:
        if type(reply) is not list:
            return reply
        return self.lua.table_from([self.lua_value(one) for one in reply])

    def run(self, store: Store, verb: str, keys: Sequence[str], argv: Sequence[Any]) -> Any:
        """Run a script and return its reply to the client. Raise ScriptError if it fails."""
        self.store, table = store, self.lua.table_from
        try:
            reply = _reply(self.verbs[verb](table(list(keys)), table([str(a) for a in argv])))
            return reply.split(" ") if isinstance(reply, str) else reply
        except self.failures as error:
            raise ScriptError(str(error).splitlines()[0]) from None


def _reply(value: Any) -> Any:
    """Convert the result of a script to its reply, as Redis does. Redis truncates numbers, and ends
    a list at its first nil."""
    if type(value) in (str, int):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if type(value) is float:
        return int(value)
    items = []
    while (item := value[len(items) + 1]) is not None:
        items.append(_reply(item))
    return items


# Scripts with a defect


def planted(lua: Mapping[str, str], constants: Mapping[str, int]) -> dict[str, str]:
    """Return the text of each script by name. In each text, replace each key of `lua` by its value.

    Raise LookupError if `lua` has a key that no script contains."""
    lost, texts = set(lua), dict[str, str]()
    for verb in scripts.NAME_SCRIPTS:
        text = scripts.with_functions(scripts.read(verb))
        for anchor, other in lua.items():
            lost -= {anchor} if anchor in text else set()
            text = text.replace(anchor, other)
        # Replace the names of constants and fields by numbers last: `lua` contains these names.
        texts[verb] = scripts.with_numbers(verb, text, {**scripts.PATTERNS, **constants})
    if lost:
        raise LookupError(f"no script contains {sorted(lost)}")
    return texts


@cache
def compiled(lua: tuple[tuple[str, str], ...]) -> Scripts:
    """Return the compiled scripts. `lua`: pairs of a piece of the scripts and the code that
    replaces it."""
    return Scripts(planted(dict(lua), scripts.CONSTANTS))
