"""Defects for the scripts. Tests add one defect at a time, and verify that the checker finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .clients import FOREVER, Spec
from .world import Setting


class Defect(NamedTuple):
    """A defect of the scripts, with a setting in which it breaks an invariant.

    `found`: a pattern that the checker's message matches. `changes`: maps pieces of the scripts to
    the code that replaces them. `kinds`: the kinds of faults. A run has at most one fault, of one
    of these kinds. If `kinds` is empty, a run has no fault.
    """

    found: str
    clients: tuple[Spec, ...]
    changes: Mapping[str, str]
    kinds: str = ""
    operations: tuple[tuple[str, str], ...] = ()
    horizon: int = 8

    @property
    def setting(self) -> Setting:
        faults = 1 if self.kinds else 0
        return Setting("defect", self.clients, self.horizon, faults, self.kinds, self.operations)


_NOW, _SOON, _SHORT = Spec(begins=0), Spec(begins=1), Spec(lease=2, begins=0)
_TRIES, _LATE = Spec(lease=1, wait=False, begins=4), Spec(wait=False, begins=6)
_TASK, _TWO = Spec(asynchronous=True, begins=0), Spec(limit=2, begins=0)
#: Clients of two shares. The name has two permits, and each share may use one of them.
_OF_A, _OF_B = (Spec(limit=2, share=share, share_limit=1, begins=1) for share in "ab")
_TURN_A = Spec(share="a", begins=1)
_CLEARED = (("clear", ""),)

# fmt: off
DEFECTS = {
    "a waiter loses its position although its event loop sent heartbeats in time": Defect(
        "lost its position although it asked in time", (_NOW, _TASK, _TASK),
        {f"{whose}, name.now + ALIVE": f"{whose}, name.now + 1" for whose in ("channel", "asker")}),
    "a full memory denies a renewal": Defect(
        "renew of a1 was denied for want of memory", (Spec(begins=0, renew=(4,)), _SOON),
        {"redis.pcall('ZADD', LEASES,": "redis.call('ZADD', LEASES,"}, "full"),
    "the scripts use the clocks of clients, one of which is two ticks ahead": Defect(
        "took the lease|an expired lease", (_NOW, Spec(begins=4)),
        {"local time = redis.call('TIME')": "local time = redis.call('TIME')\n"
         "if string.sub(token, 1, 1) == 'b' then time[1] = time[1] + 2 end"}),
    "release ignores the fence": Defect(
        "release accepted .1 with the fence of another|release of (.1) took the lease of \\1",
        (_SHORT, _TRIES), {"not (live and own == fence)": "not live"}, "delay"),
    "release ignores the expiry of the lease": Defect(
        "release confirmed the expired lease of .1", (_SHORT, _TRIES),
        {"not (live and own == fence)": "own ~= fence", "live and 'ok' or 'gone'": "'ok'"}),
    "a retry doesn't return the lease of its token": Defect(
        "was granted again while it held", (_TWO, _TWO),
        {"\nif record then": "\nif string.sub(record or '', 1, 1) == 'h' then record = nil end\n"
         "if record then"}, "lose"),
    "a release hands nothing off": Defect(
        "permits are free, and release left b1 waiting", (_NOW, _SOON),
        {"if name.card == 0 and not name.shared or": "if false and"}),
    "a heartbeat doesn't hand off free permits": Defect(
        "permits are free for|still waits after", (_NOW, _SOON),
        {"if me or waiting > 0 and": "if not me and waiting > 0 and"}, "crash"),
    "the server applies the renewal that arrives last, not the newest": Defect(
        "treats an expired lease as held", (Spec(lease=2, begins=0, renew=(2, 5)), _LATE),
        {"if coming >= latest then": "if true then"}, "delay"),
    "a handoff is confirmed with another fence": Defect(
        "treats another lease", (_NOW, _SOON),
        {"local message = fence": "local message = '17' .. fence"}),
    "an undo does not tombstone": Defect(
        "had ended and was granted again", (_NOW, _SOON),
        {"if tombstone == '1' then": "if false then"}, "cancel"),
    "an operator's clear does not tombstone": Defect(
        "was cleared and came back", (_NOW, _SOON),
        {"\nwrite_tombstone(name, token)\n": "\n"}, "delay", _CLEARED),
    "a waiter that asks again is removed first": Defect(
        "lost its position by asking again|stopped", (_NOW, _SOON),
        {"if t == me then": "if false then"}, "pause"),
    "the wake-up element of a token outlives its lease": Defect(
        "left a wake-up message", (_NOW, _NOW, Spec(wait=False, begins=3)),
        {"    redis.call('DEL', wake_key(t))\n": ""}, "crash"),
    "the permits of a lease are counted as one": Defect(
        "#extra is|over the limit|than the limit", (Spec(permits=2, limit=2, begins=0), _TWO),
        {"name.card + 1, name.extra + weight(permits) - 1": "name.card + 1, name.extra"}),
    "the keys expire when the lease of the last writer ends": Defect(
        "expires before a lease or a waiter ends", (_TWO, Spec(lease=1, limit=2, begins=0)),
        {" and latest + GRACE > expiry": ""}),
    "the keys of a permanent lease expire": Defect(
        "expires, although its contents must last", (Spec(lease=FOREVER, begins=0), _SOON),
        {"redis.call('PERSIST', keys[i])": ""}),
    "the ticket of a waiter counts as a time at which the keys may expire": Defect(
        "left behind", (_NOW, _SOON),
        {"if name.extra ~= name.stored then": "if name.new_queue then latest = name.us end\n"
         "if name.extra ~= name.stored then"}),
    "a fence is formatted by Lua's default": Defect(
        "the fence of .1 did not grow", (_NOW, _SOON),
        {"string.format(name.format, name.fence)": "name.fence .. ''",
         "string.format('%d', fence)": "fence .. ''", "if #given ~= 16": "if false"}),
    "two requests in one microsecond get one ticket": Defect(
        "two waiters have one ticket", (_NOW, _NOW, _NOW),
        {"math.max(name.us, (last or 0) + 1)": "name.us"}),
    "an expansion loses the record": Defect(
        "without a record", (_NOW, _SOON),
        {"if terms then redis.call('HSET', INFO, holder, record) end": ""}),
    "a new request is granted above the limit of its share": Defect(
        "granted over the limit of its share", (_OF_A, _OF_A),
        {"fitting, last = share_fits(held, permits, bound), nil": "fitting, last = true, nil"}),
    "a release of a share doesn't queue its next waiter": Defect(
        "is parked, but is first of a share that has permits left", (_OF_A, _OF_A, _OF_B),
        {"first = queue_next_of_share(name, share, held, ticket)": "first = ''"}, horizon=4),
    "a lease that ends still counts for its share": Defect(
        "the use of share a is 1, the leases say 0|rejected while its share had permits",
        (_OF_A, _OF_A, _OF_B),
        {"held - weight(tonumber(string.match(terms, '^%d+')))": "held"}, horizon=4),
    "two waiters of one share enter the queue": Defect(
        "two waiters of one share are in the queue", (_TURN_A, _TURN_A, _TURN_A),
        {"if fitting and first == '' and not last then": "if fitting then"}, horizon=4),
}
# fmt: on
