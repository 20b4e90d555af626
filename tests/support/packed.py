"""What the short state of a name holds, for tests that look at its keys."""

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
    """`ends`: server ms, 0 when nobody holds; then `holder` and `record` are empty."""

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
        """Permits that the lease takes."""
        permits = int(self.record.split(" ")[3]) if self.holder else 0
        return permits or (CONSTANTS["EXCLUSIVE"] if self.holder else 0)

    @property
    def fields(self) -> dict[str, str]:
        """INFO, as if it were laid out."""
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
    """The short state of the name with that key, when it is in that."""
    packed, _ = _read(client, leases)
    return None if packed is None else unpack(packed)


def leases_of(client: Any, leases: str) -> dict[str, float]:
    """When each lease ends, in ms, also those that are over; the one that ends last at the end."""
    packed, laid_out = _read(client, leases)
    if packed is not None:
        one = unpack(packed)
        return {one.holder: float(one.ends)} if one.holder else {}
    return {token.decode(): end for token, end in laid_out}


def _read(client: Any, leases: str) -> tuple[bytes | None, list[tuple[bytes, float]]]:
    """What is packed, and what is laid out. The key is one or the other, and may turn while
    somebody looks; MULTI would not do, for a full memory refuses it."""
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
    """The keys that a name can have and the wake list of a token."""
    own = keys.leases, keys.queue, keys.parked, keys.waiters, keys.info, keys.stats
    return (*own, keys.wake + token, keys.declared[1])
