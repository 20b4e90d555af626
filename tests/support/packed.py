"""Read the compact state of a name, for tests that examine its keys."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis

from django_redis_sync.protocol.keys import Keys
from django_redis_sync.protocol.scripts import CONSTANTS

_HEAD = struct.Struct("<Bddd")


class Packed(NamedTuple):
    """The compact state. Without a holder, `ends` (in ms) is 0, `holder` and `record` are empty."""

    format: int
    fence: int
    expiry: int
    ends: int
    seen: str
    peak: str
    holder: str
    record: str

    @property
    def weight(self) -> int:
        """Number of permits that the lease takes."""
        permits = int(self.record.split(" ")[3]) if self.holder else 0
        return permits or (CONSTANTS["EXCLUSIVE"] if self.holder else 0)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the info key in expanded state."""
        found = {"#fence": str(self.fence), "#expiry": str(self.expiry), "#seen": self.seen}
        found["#extra"] = str(max(0, self.weight - 1))
        more = {"#peak": self.peak, self.holder: self.record}
        return found | {name: value for name, value in more.items() if value}

    def pack(self) -> bytes:
        head = _HEAD.pack(*self[:4])
        texts = (text.encode() + b"\0" for text in self[4:7])
        return b"".join([head, *texts, self.record.encode()])


def unpack(packed: bytes) -> Packed:
    format_, fence, expiry, ends = _HEAD.unpack_from(packed)
    seen, peak, holder, record = packed[_HEAD.size :].decode().split("\0", 3)
    return Packed(format_, int(fence), int(expiry), int(ends), seen, peak, holder, record)


def packed_of(client: Any, leases: str) -> Packed | None:
    """Return the compact state of the name with this key, or None if its state is expanded."""
    packed, _ = _read(client, leases)
    return None if packed is None else unpack(packed)


def leases_of(client: Any, leases: str) -> dict[str, float]:
    """Return the expiry of each lease in ms, in ascending order, including expired leases."""
    packed, laid_out = _read(client, leases)
    if packed is not None:
        state = unpack(packed)
        return {state.holder: float(state.ends)} if state.holder else {}
    return {token.decode(): end for token, end in laid_out}


def _read(client: Any, leases: str) -> tuple[bytes | None, list[tuple[bytes, float]]]:
    """Return the compact state, or None and the expanded leases.

    The key may change its type between the two commands. MULTI can't prevent that, because Redis
    rejects it when its memory is full."""
    while True:
        with _of_that_type():
            if packed := client.hget(leases, "#"):
                return packed, []
        with _of_that_type():
            return None, client.zrange(leases, 0, -1, withscores=True)


@contextlib.contextmanager
def _of_that_type() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise


def all_keys(keys: Keys, token: str) -> tuple[str, ...]:
    """Return all keys that a name can have, including the wake list of a token."""
    own = keys.leases, keys.queue, keys.parked, keys.waiters, keys.info, keys.stats
    return (*own, keys.wake + token, keys.declared[1])
