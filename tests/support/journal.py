"""The journal: a Redis list with an entry for each run of a script. `history.py` checks it.

This module wraps the source of each script. In the wrapper, a local variable `redis` replaces the
real one and records the script's writes, so the checker doesn't rely on the reply. A wrapped script
takes two to three times as long. Scripts don't declare the journal's key, so a journal works on a
single server, but not on a Cluster.

    with journalling(redis_url) as journal:
        ...
    journal.check()

In child processes, `install_from_env()` reads the journal's key from the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import redis

from django_redis_sync.protocol import plans, scripts

ENV_KEY = "SYNC_TEST_JOURNAL"
ENV_CONSTANTS = "SYNC_TEST_CONSTANTS"
CHUNK = 5000

_compose, _constants = scripts.compose, scripts.CONSTANTS

# The items of an entry, in this order:
# - run id: the id of the server process
# - time: in µs of the server's clock
# - script: the name of the script that ran
# - name: the lock or semaphore, as the Redis key without its last part
# - ARGV
# - reply: empty for the script `inspect`, or if the script failed
# - state: two items that describe the data before the script ran. The first is the compact state,
#   or the number of leases. The second is the length of the queue. -1 if a key has another type
# - writes: [command, key, arguments...] of each write, except to the key `stats`. A key of the name
#   is shortened to the part after the name. A ZREM of a lease has one more item: 1 if the wake list
#   of its token existed, or 0
# - error: the message of the error that ended the script, or ""
PRELUDE = """
local journal_real, journal_time, journal_writes = redis, nil, {}
local journal_skip = {TIME = 1, HMGET = 1, HGET = 1, ZCARD = 1, ZSCORE = 1, ZRANGE = 1, ZRANK = 1,
  ZREVRANGE = 1, ZRANGEBYSCORE = 1, ZCOUNT = 1, EXISTS = 1, PUBLISH = 1, HGETALL = 1, HSCAN = 1,
  ZRANGEBYLEX = 1, ZREVRANGEBYLEX = 1, ZLEXCOUNT = 1}
local journal_base = string.sub(KEYS[1], 1, -7)
local function journal_state(command, key, ...)
  local found = journal_real.pcall(command, key, ...)
  return type(found) ~= 'table' and found
end
local function journal_text(value)
  return type(value) == 'number' and string.format('%.17g', value) or tostring(value)
end
local function journal_take(how, ...)
  local command, key, member = ...
  local wake = command == 'ZREM' and key == KEYS[1]
    and journal_real.pcall('EXISTS', journal_base .. 'wake:' .. member)
  local reply = journal_real[how](...)
  if command == 'TIME' then journal_time = journal_time or reply end
  local failed = type(reply) == 'table' and reply.err
  if failed or journal_skip[command] or key == journal_base .. 'stats' then return reply end
  if command == 'PEXPIREAT' and reply == 0 then return reply end
  local note = {}
  for i, value in ipairs({...}) do note[i] = journal_text(value) end
  if string.sub(key, 1, #journal_base) == journal_base then
    note[2] = string.sub(key, #journal_base + 1)
  end
  if wake then note[#note + 1] = wake end
  journal_writes[#journal_writes + 1] = note
  return reply
end
local redis = setmetatable({
  call = function(...) return journal_take('call', ...) end,
  pcall = function(...) return journal_take('pcall', ...) end,
}, {__index = journal_real})
local journal_before = {
  journal_state('HGET', KEYS[1], '#') or journal_state('ZCARD', KEYS[1]) or -1,
  journal_state('ZCARD', journal_base .. 'queue') or -1}
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
local journal_info = journal_real.call('INFO', 'server')
-- pcall, so that a full memory doesn't fail a release. A lost entry is noticed later.
journal_real.pcall('RPUSH', '%(key)s', cjson.encode({
  string.match(journal_info, 'run_id:(%%x+)'),
  string.format('%%.0f', journal_time[1] * 1000000 + journal_time[2]), '%(verb)s',
  string.sub(journal_base, 1, -2), ARGV,
  journal_ok and '%(verb)s' ~= 'inspect' and journal_reply or {},
  journal_before, journal_writes, journal_error}))
if not journal_ok then error(journal_reply, 0) end
return journal_reply
"""


class Entry(NamedTuple):
    """A journal entry: a script run, or a note of a test. The verb of a note starts with `!`."""

    seq: int
    epoch: str
    us: int
    verb: str
    name: str
    argv: tuple[str, ...] = ()
    reply: tuple[Any, ...] = ()
    before: tuple[Any, Any] = (0, 0)
    writes: tuple[tuple[Any, ...], ...] = ()
    error: str = ""

    @property
    def said(self) -> dict[str, Any]:
        """The arguments (ARGV) by name."""
        return scripts.arguments_of(self.verb, self.argv)


def wrap(verb: str, source: str, key: str) -> str:
    """Return the source of a script, wrapped so that each run adds an entry to a journal."""
    if not re.fullmatch(r"[\w:{}.-]+", key):
        raise ValueError(f"invalid character in the journal key {key!r}")
    return PRELUDE + source + CODA % {"key": key, "verb": verb}


def parse(seq: int, line: bytes | str) -> Entry:
    if isinstance(line, str):  # a note
        return Entry(seq, "", 0, f"!{line}", "")
    epoch, us, verb, name, argv, reply, before, writes, error = json.loads(
        line.decode("utf-8", "surrogateescape")
    )
    words = reply.split(" ") if isinstance(reply, str) else reply
    some = tuple(argv), tuple(words), tuple(before), tuple(map(tuple, writes))
    return Entry(seq, epoch, int(us), verb, name, *some, error)


class Journal:
    """The journal in the Redis list `key`. `drained`: entries that were moved from the list to this
    process, and notes."""

    def __init__(
        self, client: redis.Redis, key: str, constants: Mapping[str, int] = _constants
    ) -> None:
        self.client, self.key, self.constants = client, key, constants
        self.drained: list[bytes | str] = []

    def drain(self) -> int:
        """Move the entries from the server to `drained`, for example before a flush or a kill.
        Return the number of moved entries."""
        lines: list[bytes] = self.client.lrange(self.key, 0, -1)
        if lines:
            self.client.ltrim(self.key, len(lines), -1)
        self.drained += lines
        return len(lines)

    def note(self, word: str) -> None:
        """Add a note for the checker. The note `wiped` means that the test has deleted all keys."""
        self.drain()
        self.drained.append(word)

    def take(self) -> list[Entry]:
        """Return the drained entries, and remove them from `drained`."""
        taken, self.drained = self.drained, []
        return [parse(seq, line) for seq, line in enumerate(taken)]

    def __iter__(self) -> Iterator[Entry]:
        return (parse(seq, line) for seq, line in enumerate(self.lines()))

    def lines(self) -> Iterator[bytes | str]:
        yield from self.drained
        start = 0
        while chunk := self.client.lrange(self.key, start, start + CHUNK - 1):
            yield from chunk
            start += len(chunk)

    def check(self) -> Any:
        """Check all entries, and return the `History`. Raise AssertionError at a violation."""
        from .history import judge  # imported here because history.py imports this module

        history = judge(self, self.constants)
        assert history.entries, f"nothing was written to the journal {self.key}"
        assert not history.violations, history.report()
        return history


def install(key: str, constants: Mapping[str, int] | None = None) -> None:
    """Record this process's script runs in the journal `key`. `constants`: changed constants."""
    merged = {**_constants, **(constants or {})}

    def compose(verb: str, constants: Mapping[str, int] | None = None) -> str:
        source = _compose(verb, constants or merged)
        return wrap(verb, source, key) if verb in scripts.NAME_SCRIPTS else source

    _patch(compose, merged)


def uninstall() -> None:
    _patch(_compose, _constants)


def install_from_env() -> None:
    """In a child process, use the journal of the parent process, if there is one."""
    if key := os.environ.get(ENV_KEY):
        install(key, json.loads(os.environ.get(ENV_CONSTANTS, "{}")))


def _is_composing() -> bool:
    # True, too, if two threads have composed a script that was in the cache of neither.
    cache = scripts.script.cache_info()
    return cache.misses > cache.currsize


def _patch(compose: Any, constants: Mapping[str, int]) -> None:
    # Replace `compose`, which `script` looks up at each call. Don't replace `script`: modules that
    # have already imported `script` would still use the old function.
    scripts.compose = compose
    until = time.monotonic() + 0.5
    while _is_composing() and time.monotonic() < until:  # threads that use the former `compose`
        time.sleep(0.001)
    scripts.script.cache_clear()
    scripts.CONSTANTS = plans.CONSTANTS = constants
    plans.CLAIM = constants["CLAIM"] / 1000


@contextlib.contextmanager
def journalling(
    url: str, key: str | None = None, constants: Mapping[str, int] | None = None
) -> Iterator[Journal]:
    """Yield a journal of the scripts that this process runs in the block. Child processes that
    start in the block also write to the journal."""
    if key is None:
        prefix = os.environ.get("DJANGO_REDIS_SYNC_TEST_PREFIX", "test-sync")
        key = f"{prefix}-journal:{secrets.token_hex(4)}"
    # A separate client, which returns bytes and stays open until the end of the block.
    client = redis.Redis.from_url(url, decode_responses=False)
    journal = Journal(client, key, {**_constants, **(constants or {})})
    with mock.patch.dict(
        os.environ, {ENV_KEY: key, ENV_CONSTANTS: json.dumps(dict(constants or {}))}
    ):
        install(key, constants)
        try:
            yield journal
        finally:
            uninstall()
            with contextlib.suppress(redis.RedisError):
                journal.drain()
                client.delete(key)
            client.close()
