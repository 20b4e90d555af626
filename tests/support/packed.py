"""Read the compact state of a name, for tests that examine its keys."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis

from django_redis_sync.protocol.keys import Keys, touched
from django_redis_sync.protocol.scripts import CONSTANTS

_HEAD = struct.Struct("<Bddd")


class Packed(NamedTuple):
    """The fields of a compact state. `ends`: the end of the lease in ms.

    If the name has no holder, `ends` is 0, and `holder` and `record` are empty."""

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
        """Number of permits that the lease takes, or 0 if the name has no holder."""
        permits = int(self.record.split(" ")[3]) if self.holder else 0
        return permits or (CONSTANTS["EXCLUSIVE"] if self.holder else 0)

    @property
    def leases(self) -> dict[str, float]:
        """The end of each lease in ms, by token. In expanded state, these would be the members and
        scores of the leases key."""
        return {self.holder: float(self.ends)} if self.holder else {}

    @property
    def fields(self) -> dict[str, str]:
        """The fields that the info key would have in expanded state."""
        found = {"#fence": str(self.fence), "#expiry": str(self.expiry), "#seen": self.seen}
        found["#extra"] = str(max(0, self.weight - 1))
        more = {"#peak": self.peak, self.holder: self.record}
        return found | {name: value for name, value in more.items() if value}

    def pack(self) -> bytes:
        texts = (text.encode() + b"\0" for text in self[4:7])
        return b"".join([_HEAD.pack(*self[:4]), *texts, self.record.encode()])


def unpack(packed: bytes) -> Packed:
    format_, fence, expiry, ends = _HEAD.unpack_from(packed)
    seen, peak, holder, record = packed[_HEAD.size :].decode().split("\0", 3)
    return Packed(format_, int(fence), int(expiry), int(ends), seen, peak, holder, record)


def packed_of(client: Any, leases: str) -> Packed | None:
    """Return the compact state under the key `leases`, or None if the name is expanded."""
    with _ignoring_another_type():
        if packed := client.hget(leases, "#"):
            return unpack(packed)
    return None


def leases_of(client: Any, leases: str) -> dict[str, float]:
    """Return the end of each lease in ms, by token, in ascending order. Include expired leases."""
    while True:  # the key may change its type between the two commands
        if packed := packed_of(client, leases):
            return packed.leases
        with _ignoring_another_type():
            ends = client.zrange(leases, 0, -1, withscores=True)
            return {token.decode(): end for token, end in ends}


@contextlib.contextmanager
def _ignoring_another_type() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise


def all_keys(keys: Keys, token: str) -> tuple[str, ...]:
    """Return all keys that a name can have, including the wake list of a token."""
    return (*(key + token * (key == keys.wake) for key in touched(keys.declared)), keys.declared[1])
