"""Write an entry to a Redis list for each run of a script, which `history.py` checks.

The composed source of a script is wrapped: a local `redis` shadows the real one and records the
writes, so the checker doesn't rely on the script's reply. A wrapped script takes two to three times
as long. The journal's key is not declared, so this works only with a single server.

    with journalling(redis_url) as journal:
        ...
    journal.check()

Child processes read the journal's key from the environment in `install_from_env()`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import redis

from django_redis_sync.protocol import plans, scripts

ENV_KEY = "SYNC_TEST_JOURNAL"
ENV_CONSTANTS = "SYNC_TEST_CONSTANTS"
CHUNK = 5000

_compose = scripts.compose
_constants = scripts.CONSTANTS

# Entry: run id, µs, verb, name, ARGV, reply, [leases, waiting before], writes, error.
# A write: command, key (1 to 4, 5 and the token for a wake list, 6 for parked, 0 and the key for
# any other key), arguments. A ZREM of a lease ends with 1 if the token's wake list still existed.
PRELUDE = """
local journal_real, journal_time, journal_writes = redis, nil, {}
local journal_reads = {TIME = 1, HMGET = 1, HGET = 1, ZCARD = 1, ZSCORE = 1, ZRANGE = 1, ZRANK = 1,
  ZREVRANGE = 1, ZRANGEBYSCORE = 1, ZCOUNT = 1, EXISTS = 1, PUBLISH = 1, HGETALL = 1, TYPE = 1,
  HLEN = 1, LLEN = 1, HEXISTS = 1, PTTL = 1, ZREVRANK = 1, ZMSCORE = 1,
  ZRANGEBYLEX = 1, ZREVRANGEBYLEX = 1, ZLEXCOUNT = 1}
local journal_base = string.sub(KEYS[1], 1, -7)
local journal_wake = journal_base .. 'wake:'
local journal_keys = {KEYS[1], journal_base .. 'queue', journal_base .. 'waiters',
  journal_base .. 'info'}
-- The compact state: fence, expiry, holder, and record of the only lease. Writes to it are recorded
-- as if they were writes to the keys of the name.
local journal_laid
local function journal_short()
  local packed = journal_real.pcall('HGET', KEYS[1], '#')
  if type(packed) ~= 'string' then return nil end
  local _, fence, _, ends, _, _, holder, at = struct.unpack('<Bdddsss', packed)
  return fence, ends, holder, string.sub(packed, at)
end
local function journal_card(key)
  local n = journal_real.pcall('ZCARD', key)
  local _, _, holder = journal_short()
  if key == KEYS[1] and holder then n = holder ~= '' and 1 or 0 end
  return type(n) == 'number' and n or -1
end
local function journal_text(v)
  return type(v) == 'number' and string.format('%.17g', v) or tostring(v)
end
local function journal_note(reply, command, key, ...)
  -- Skip statistics, and the expiry of a key that doesn't exist.
  if key == journal_base .. 'stats' or (command == 'PEXPIREAT' and reply == 0) then return end
  if type(reply) == 'table' and reply.err then return end
  local note, args = {command}, {...}
  for i = 1, 4 do if key == journal_keys[i] then note[2] = i end end
  if key == journal_base .. 'parked' then note[2] = 6 end
  if not note[2] then
    if string.sub(key, 1, #journal_wake) == journal_wake then
      note[2], note[3] = 5, string.sub(key, #journal_wake + 1)
    else
      note[2], note[3] = 0, key
    end
  end
  for i, v in ipairs(args) do
    local text = journal_text(v)
    -- The checker needs only the state of a record.
    if command == 'HSET' and i % 2 == 0 and string.sub(args[i - 1], 1, 1) ~= '#' then
      text = string.sub(text, 1, 1)
    end
    note[#note + 1] = text
  end
  journal_writes[#journal_writes + 1] = note
end
local function journal_pack(was, who, said)
  local fence, ends, holder, record = journal_short()
  local function whole(n) return string.format('%.0f', n) end
  if who and who ~= '' and who ~= holder then journal_note(1, 'ZREM', KEYS[1], who, 0) end
  -- A second renewal in the same millisecond may not change the expiry.
  if holder ~= '' and (holder ~= who or ends ~= was or record ~= said) then
    journal_note(1, 'ZADD', KEYS[1], whole(ends), holder)
    journal_note(1, 'HSET', journal_keys[4], '#fence', whole(fence), holder, 'h')
  end
end
-- Return true if a write only expands the compact state, or makes it compact again.
local function journal_moves(command, key, score, member)
  if key == KEYS[1] then
    if command == 'DEL' then journal_laid = {journal_short()} end
    local laid = journal_laid or {}
    return command == 'DEL' or (command == 'PEXPIREAT' and journal_short()) or
      (command == 'ZADD' and member == laid[3] and tonumber(score) == laid[2])
  end
  return key == KEYS[2] or (key == journal_keys[4] and (command == 'DEL' or score == '#lone'))
end
local function journal_run(how, command, key, ...)
  if command == 'HSET' and key == KEYS[1] then
    local _, was, who, said = journal_short()
    local reply = journal_real[how](command, key, ...)
    if type(reply) ~= 'table' then journal_pack(was, who, said) end
    return reply
  end
  if journal_moves(command, key, ...) then
    local reply = journal_real[how](command, key, ...)
    local fence = command == 'HSET' and select(4, ...)
    if fence then journal_note(1, 'HSET', journal_keys[4], '#fence', fence) end
    return reply
  end
  local wake
  if command == 'ZREM' and key == KEYS[1] then
    wake = journal_real.pcall('EXISTS', journal_wake .. (...))
  end
  local reply = journal_real[how](command, key, ...)
  if command == 'TIME' then journal_time = journal_time or reply end
  if not journal_reads[command] then
    journal_note(reply, command, key, ...)
    if wake then table.insert(journal_writes[#journal_writes], wake) end
  end
  return reply
end
-- redis.call('TIME') must not become redis.call('TIME', nil).
local function journal_take(how, ...)
  if select('#', ...) > 1 then return journal_run(how, ...) end
  local reply = journal_real[how](...)
  if (...) == 'TIME' then journal_time = journal_time or reply end
  return reply
end
local redis = setmetatable({
  call = function(...) return journal_take('call', ...) end,
  pcall = function(...) return journal_take('pcall', ...) end,
}, {__index = journal_real})
local journal_cards = {journal_card(KEYS[1]), journal_card(journal_keys[2])}
local function journal_body()
"""

CODA = """
end
local journal_ok, journal_reply = pcall(journal_body)
local journal_error = ''
if not journal_ok then
  journal_error = type(journal_reply) == 'table' and journal_reply.err or tostring(journal_reply)
end
journal_time = journal_time or journal_real.call('TIME')
local journal_ttl = journal_short() and journal_writes[1] and journal_real.call('PTTL', KEYS[1])
if journal_ttl then
  for i = 1, 4, 3 do
    local now = journal_time[1] * 1000 + journal_time[2] / 1000
    local ends = string.format('%%.0f', now + journal_ttl)
    local note = journal_ttl < 0 and {'PERSIST', i} or {'PEXPIREAT', i, ends}
    journal_writes[#journal_writes + 1] = note
  end
end
local journal_info = journal_real.call('INFO', 'server')
-- pcall, so that a full memory doesn't fail a release. A lost entry is noticed later.
journal_real.pcall('RPUSH', '%(key)s', cjson.encode({
  string.match(journal_info, 'run_id:(%%x+)'),
  string.format('%%.0f', journal_time[1] * 1000000 + journal_time[2]), '%(verb)s',
  string.sub(journal_base, 1, -2), ARGV,
  journal_ok and '%(verb)s' ~= 'inspect' and journal_reply or {},
  journal_cards, journal_writes, journal_error}))
if not journal_ok then error(journal_reply, 0) end
return journal_reply
"""


class Entry(NamedTuple):
    """One run of a script, or a note of a test, whose verb starts with `!`."""

    seq: int
    epoch: str
    us: int
    verb: str
    name: str
    argv: tuple[str, ...]
    reply: tuple[Any, ...]
    cards: tuple[int, int]
    writes: tuple[tuple[Any, ...], ...]
    error: str

    @property
    def said(self) -> dict[str, Any]:
        """The arguments (ARGV) by name."""
        return scripts.arguments_of(self.verb, self.argv)


def wrap(verb: str, source: str, key: str) -> str:
    """Return the source of a script, wrapped so that it writes the journal."""
    if not re.fullmatch(r"[\w:{}.-]+", key):
        raise ValueError(f"a journal key must be plain, not {key!r}")
    return PRELUDE + source + CODA % {"key": key, "verb": verb}


def parse(seq: int, line: bytes) -> Entry:
    epoch, us, verb, name, argv, reply, cards, writes, error = json.loads(
        line.decode("utf-8", "surrogateescape")
    )
    reply = reply.split(" ") if isinstance(reply, str) else reply
    writes = tuple(map(tuple, writes))
    return Entry(
        seq, epoch, int(us), verb, name, tuple(argv), tuple(reply), tuple(cards), writes, error
    )


class Journal:
    """The journal under `key`. Entries that were drained from the server are kept in memory."""

    def __init__(
        self, client: redis.Redis, key: str, constants: Mapping[str, int] = _constants
    ) -> None:
        self.client, self.key, self.constants = client, key, constants
        self._drained: list[bytes] = []

    def drain(self) -> int:
        """Move the entries from the server to this process, for example before a flush or a kill.

        Return their number."""
        lines: list[bytes] = self.client.lrange(self.key, 0, -1)
        if lines:
            self.client.ltrim(self.key, len(lines), -1)
        self._drained += lines
        return len(lines)

    def note(self, word: str) -> None:
        """Add a note for the checker, for example `wiped`: the test has deleted the keys."""
        self.drain()
        self._drained.append(json.dumps(["", "0", f"!{word}", "", [], [], [], [], ""]).encode())

    def believe(self, beliefs: Iterable[tuple[str, str, float]]) -> None:
        """Add the local expiry of leases for the checker: the info key of the name, the token, and
        the expiry in seconds of the server's clock."""
        us, lines = f"{time.time() * 1e6:.0f}", []
        for info, token, until in beliefs:
            argv = [token, f"{until * 1000:.3f}"]
            entry = ["", us, "!believes", info.removesuffix(":info"), argv, [], [], [], ""]
            lines.append(json.dumps(entry))
        if lines:
            self.client.rpush(self.key, *lines)

    def __iter__(self) -> Iterator[Entry]:
        return (parse(seq, line) for seq, line in enumerate(self._lines()))

    def _lines(self) -> Iterable[bytes]:
        yield from self._drained
        start = 0
        while chunk := self.client.lrange(self.key, start, start + CHUNK - 1):
            yield from chunk
            start += len(chunk)

    def check(self, **options: Any) -> Any:
        """Return the history. Raise AssertionError if it has violations."""
        history = self.judge(**options)
        assert history.entries, f"nothing was written to the journal {self.key}"
        assert not history.violations, history.report()
        return history

    def judge(self, **options: Any) -> Any:
        from .history import judge  # imports this module

        return judge(self, self.constants, **options)


def install(key: str, constants: Mapping[str, int] | None = None) -> None:
    """Let this process run wrapped scripts, optionally with other constants."""
    merged = {**_constants, **(constants or {})}

    def compose(verb: str, constants: Mapping[str, int] | None = None) -> str:
        source = _compose(verb, constants or merged)
        return wrap(verb, source, key) if verb in scripts.NAME_SCRIPTS else source

    _patch(compose, merged)


def uninstall() -> None:
    _patch(_compose, _constants)


def install_from_env() -> None:
    """Let a child process write the journal of its parent, if there is one."""
    if key := os.environ.get(ENV_KEY):
        install(key, json.loads(os.environ.get(ENV_CONSTANTS, "{}")))


def _is_composing() -> bool:
    code = scripts.script.__wrapped__.__code__
    stacks = map(traceback.walk_stack, sys._current_frames().values())
    return any(frame.f_code is code for stack in stacks for frame, _ in stack)


def _patch(compose: Any, constants: Mapping[str, int]) -> None:
    # `script` looks up `compose` at each call, and other modules may have imported `script`.
    scripts.compose = compose
    while _is_composing():  # a call in another thread would cache its former result
        time.sleep(0.001)
    scripts.script.cache_clear()
    scripts._composed.cache_clear()
    scripts.CONSTANTS = plans.CONSTANTS = constants
    plans.CLAIM = constants["CLAIM"] / 1000


@contextlib.contextmanager
def journalling(
    url: str, key: str | None = None, constants: Mapping[str, int] | None = None
) -> Iterator[Journal]:
    """Journal the scripts of this process and of the children that it starts in the block."""
    if key is None:
        prefix = os.environ.get("DJANGO_REDIS_SYNC_TEST_PREFIX", "test-sync")
        key = f"{prefix}-journal:{secrets.token_hex(4)}"
    before = {name: os.environ.get(name) for name in (ENV_KEY, ENV_CONSTANTS)}
    # A separate client, which returns bytes and stays open until the end of the block.
    client = redis.Redis.from_url(url, decode_responses=False)
    os.environ[ENV_KEY], os.environ[ENV_CONSTANTS] = key, json.dumps(dict(constants or {}))
    install(key, constants)
    journal = Journal(client, key, {**_constants, **(constants or {})})
    try:
        yield journal
    finally:
        uninstall()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        with contextlib.suppress(redis.RedisError):
            journal.drain()
            client.delete(key)
        client.close()
