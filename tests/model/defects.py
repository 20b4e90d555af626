"""Defects in the real scripts and plans, each of which the checker must find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .clients import FOREVER, Spec
from .world import Setting


@dataclass(frozen=True)
class Defect:
    """A defect. `lua`, `python`: text -> replacement. `found`: pattern of the checker's message."""

    name: str
    found: str
    clients: tuple[Spec, ...]
    lua: Mapping[str, str] = field(default_factory=dict)
    python: Mapping[str, str] = field(default_factory=dict)
    kinds: str = ""
    horizon: int = 8
    operations: tuple[tuple[str, str], ...] = ()

    @property
    def setting(self) -> Setting:
        faults = 1 if self.kinds else 0
        return Setting(self.name, self.clients, self.horizon, faults, self.kinds, self.operations)


_NOW = Spec(begins=0)
_SOON = Spec(begins=1)
_SHORT = Spec(lease=2, begins=0)
_TRIES = Spec(lease=1, wait=False, begins=4)
#: Of two shares, each with one permit of two.
_OF_A = Spec(limit=2, tenant="a", bound=1, begins=1)
_OF_B = Spec(limit=2, tenant="b", bound=1, begins=1)
_TURN_A = Spec(tenant="a", begins=1)

DEFECTS = [
    Defect(
        "a waiter loses its place although its event loop sent heartbeats in time",
        "asked in time and had lost its place",
        (_NOW, Spec(asynchronous=True, begins=0), Spec(asynchronous=True, begins=0)),
        {"local ends = name.now + ALIVE": "local ends = name.now + 1"},
    ),
    Defect(
        "a heartbeat is removed with the first task that leaves",
        "asked in time and had lost its place|permits are free",
        (
            Spec(asynchronous=True, loop=0, begins=0),
            Spec(asynchronous=True, loop=0, begins=0),
            Spec(asynchronous=True, loop=0, begins=0),
        ),
        {
            "local function claim(token)\n": (
                "local function claim(token)\n  redis.call('ZREM', WAITERS, 'ch:0')\n"
            )
        },
        horizon=5,
    ),
    Defect(
        "a full memory denies a renewal",
        "renew of a1 was denied for want of memory",
        (Spec(begins=0, renew=(4,)), _SOON),
        {"redis.pcall('ZADD', LEASES,": "redis.call('ZADD', LEASES,"},
        kinds="full",
    ),
    Defect(
        "a full memory denies a waiter its place",
        "of .1 was denied for want of memory",
        (_NOW, _SOON),
        {"  redis.call('DEL', NEVER)\n": ""},
        kinds="full",
    ),
    Defect(
        "the scripts use the clocks of clients, one of which is two ticks ahead",
        "took the lease|an expired lease",
        (_NOW, Spec(begins=4)),
        {
            "local time = redis.call('TIME')": "local time = redis.call('TIME')\n"
            "if string.sub(token, 1, 1) == 'b' then time[1] = time[1] + 2 end"
        },
    ),
    Defect(
        "release ignores the fence",
        "release accepted .1 with the fence of another|release of (.1) took the lease of \\1",
        (_SHORT, _TRIES),
        {"not (live and own == fence)": "not live"},
        kinds="delay",
    ),
    Defect(
        "release ignores the expiry of the lease",
        "release confirmed the expired lease of .1",
        (_SHORT, _TRIES),
        {
            "not (live and own == fence)": "own ~= fence",
            "live and 'ok' or 'gone'": "'ok'",
        },
    ),
    Defect(
        "a retry doesn't return the lease of its token",
        "was granted again while it held",
        (Spec(limit=2, begins=0), Spec(limit=2, begins=0)),
        {
            "\nif record then": (
                "\nif string.sub(record or '', 1, 1) == 'h' then record = nil end\nif record then"
            )
        },
        kinds="lose",
    ),
    Defect(
        "a release hands nothing off",
        "permits are free, and release left b1 waiting",
        (_NOW, _SOON),
        {"if waiting_of(name) > 0 then\n  if name.card > 0 then": "if false then\n  if true then"},
    ),
    Defect(
        "a heartbeat doesn't hand off free permits",
        "permits are free for|still waits after",
        (_NOW, _SOON),
        {"if me or waiting > 0 and": "if not me and waiting > 0 and"},
        kinds="crash",
    ),
    Defect(
        "renew ignores the fence",
        "renew accepted a1 with the fence of another lease",
        (Spec(lease=2, begins=0, renew=(2,)), _TRIES),
        {"or own ~= fence then": "then"},
        kinds="delay",
    ),
    Defect(
        "the server applies the renewal that arrives last, not the newest",
        "treats an expired lease as held",
        (Spec(lease=2, begins=0, renew=(2, 5)), Spec(wait=False, begins=6)),
        {" and coming >= latest": ""},
        kinds="delay",
    ),
    Defect(
        "the reply that arrives last sets the local expiry, not that of the newest renewal",
        "treats an expired lease as held",
        (Spec(lease=3, begins=0, renew=(5,), keep=(2,)), Spec(wait=False, begins=6)),
        python={"self._ends[nth] = (until, True)": "self._ends = {nth: (until, True)}"},
    ),
    Defect(
        "local expiry ignores an unanswered renewal",
        "treats an expired lease as held",
        (Spec(begins=0, renew=(2,)), Spec(wait=False, begins=6)),
        python={"self._ends[nth] = (now + lease - TICK, False)": "pass"},
        kinds="pause",
    ),
    Defect(
        "the reply to a longer renewal hides a shorter one in flight",
        "treats an expired lease as held",
        (Spec(lease=3, begins=0, renew=(5,), keep=(2,)), Spec(wait=False, begins=6)),
        python={"min(end for nth, (end, _) in ends.items() if nth >= newest)": "ends[newest][0]"},
        kinds="pause",
    ),
    Defect(
        "a late acquire gets a permit with the token of retained permits",
        "had ended and was granted again",
        (Spec(begins=0, hold=2), _SOON),
        {"  if tombstone == '1' then": "  if false then"},
        kinds="delay",
    ),
    Defect(
        "the keys expire when the lease of the last writer ends",
        "expires before a lease or a waiter ends",
        (Spec(lease=6, limit=2, begins=0), Spec(lease=1, limit=2, begins=0)),
        {" and latest + GRACE > expiry": ""},
    ),
    Defect(
        "local expiry counts from the arrival of a late wake-up",
        "treats an expired lease as held",
        (_NOW, _SOON),
        python={
            "began = min(answer.received, asked + int(granted) / 1000 - then)": (
                "began = answer.received"
            )
        },
        kinds="pause",
    ),
    Defect(
        "local expiry counts from the arrival of the reply",
        "treats an expired lease as held",
        (_NOW, _SOON),
        python={"token, reply, answer.sent, start": "token, reply, answer.received, start"},
        kinds="pause",
    ),
    Defect(
        "the wake-up element of a token outlives its lease",
        "left an element to wake it",
        (_NOW, _NOW, Spec(wait=False, begins=3)),
        {"    redis.call('DEL', wake_key(t))\n": ""},
        kinds="crash",
    ),
    Defect(
        "an undo does not tombstone",
        "had ended and was granted again",
        (_NOW, _SOON),
        python={'_ending("undo", 1,': '_ending("undo", 0,'},
        kinds="cancel",
    ),
    Defect(
        "a release does not tombstone",
        "had ended and was granted again",
        (_NOW, _SOON),
        python={'_ending("release", int(grant.unanswered)': '_ending("release", 0'},
        kinds="delay",
    ),
    Defect(
        "an operator's clear does not tombstone",
        "was cleared and came back",
        (_NOW, _SOON),
        {"if not tonumber(redis.pcall('HSET', INFO, token, 'x 0 0 0 0 - ')) then": "if false then"},
        kinds="delay",
        operations=(("clear", ""),),
    ),
    Defect(
        "a waiter that asks again is removed first",
        "asked again and lost its place|stopped",
        (_NOW, _SOON),
        {"if t == me then": "if false then"},
        kinds="pause",
    ),
    Defect(
        "local expiry after a message is the lease of the handoff",
        "treats an expired lease as held|treats another lease",
        (_NOW, Spec(asynchronous=True, begins=0), Spec(begins=0)),
        python={'lease = lease if ask.channel == "-" else': "lease = lease if True else"},
        horizon=5,
    ),
    Defect(
        "the permits of a lease are counted as one",
        "#extra is|over the limit|than the limit",
        (Spec(permits=2, limit=2, begins=0), Spec(limit=2, begins=0)),
        {"name.card + 1, name.extra + weight(permits) - 1": "name.card + 1, name.extra"},
    ),
    Defect(
        "the keys of a permanent lease expire",
        "expires, and with it what was to last",
        (Spec(lease=FOREVER, begins=0), _SOON),
        {"redis.call('PERSIST', key)": ""},
    ),
    Defect(
        "the ticket of a waiter counts as a time at which the keys may expire",
        "left behind",
        (_NOW, _SOON),
        {
            "if name.extra ~= name.stored then": (
                "if name.new_queue then latest = name.us end\nif name.extra ~= name.stored then"
            )
        },
    ),
    Defect(
        "a fence is formatted by Lua's default",
        "the fence of .1 did not grow",
        (_NOW, _SOON),
        {
            "string.format(name.format, name.fence)": "name.fence .. ''",
            "string.format('%d', fence)": "fence .. ''",
            "if #given ~= 16 then given = string.format('%.0f', fence) end": "",
        },
    ),
    Defect(
        "two requests in one microsecond get one ticket",
        "two waiters have one ticket",
        (_NOW, _NOW, _NOW),
        {"math.max(name.us, (last or 0) + 1)": "name.us"},
    ),
    Defect(
        "a waiter loses its place before it must ask again",
        "asked in time and had lost its place",
        (_NOW, _NOW, _SOON),
        {"delay + PATIENCE": "delay - PATIENCE"},
    ),
    Defect(
        "a waiter has no deadline until it asks again",
        "asked in time and had lost its place",
        (_NOW, _NOW, _SOON),
        {"tonumber(redis.pcall('ZADD', WAITERS, string.format(name.format, dead), token))": "0"},
    ),
    Defect(
        "a pause expires with the last lease",
        "expires, and with it what was to last",
        (_NOW, _SOON),
        {"    latest = math.max(latest, pause_ends(own[2]))\n": ""},
        operations=(("pause", ""),),
    ),
    Defect(
        "a resume hands nothing off",
        "permits are free, and operate left .1 waiting",
        (_NOW, _SOON),
        {
            "for _ = 1, BOUND do\n    local head": (
                "for _ = 1, ARGV[2] == 'resume' and 0 or BOUND do\n    local head"
            )
        },
        operations=(("pause", ""), ("resume", "")),
    ),
    Defect(
        "an expansion loses the lease",
        "took the lease of a1|an expired lease|has a lease without a record|over the limit",
        (_NOW, _SOON),
        {"redis.call('ZADD', LEASES, string.format('%.0f', ends), holder)": "local _ = ends"},
    ),
    Defect(
        "an expansion loses the record",
        "without a record",
        (_NOW, _SOON),
        {"if terms then redis.call('HSET', INFO, holder, record) end": ""},
    ),
    Defect(
        "a name becomes compact while a tombstone exists",
        "had ended and was granted again",
        (_NOW, _SOON),
        {"redis.call('ZCARD', WAITERS) == 0 and": ""},
        kinds="cancel",
    ),
    Defect(
        "a lease in compact state is granted again",
        "took the lease of .1",
        (_NOW, _SOON),
        {"if packs and holder == '' and": "if packs and"},
    ),
    Defect(
        "an expired lease in compact state is renewed",
        "renew confirmed the expired lease of .1",
        (Spec(lease=2, begins=0, renew=(2,)), _TRIES),
        {
            "or lease_ends <= name.now or last ~= tonumber(fence)": "or last ~= tonumber(fence)",
        },
        kinds="delay pause",
    ),
    Defect(
        "an expired lease in compact state is released",
        "release confirmed the expired lease of .1",
        (_SHORT, _TRIES),
        {"holder == token and us < ends * 1000": "holder == token"},
    ),
    Defect(
        "a full memory denies a release in compact state",
        "release of .1 was denied for want of memory",
        (_NOW, _SOON),
        {
            "if not tonumber(redis.pcall('HSET', LEASES, '#', idle)) then": (
                "if redis.call('HSET', LEASES, '#', idle) == 9 then"
            )
        },
        kinds="full",
    ),
    Defect(
        "a name in compact state expires before its lease",
        "expires before a lease or a waiter ends",
        (Spec(lease=6, begins=0), _TRIES),
        {"if later then expiry = ends + 2 * GRACE end": "expiry = ends - 1"},
    ),
    Defect(
        "a new request is granted above the limit of its share",
        "granted over the limit of its share",
        (_OF_A, _OF_A),
        {"fitting, last = share_fits(held, permits, bound), nil": "fitting, last = true, nil"},
    ),
    Defect(
        "a release of a share doesn't queue its next waiter",
        "is first of its share, which has permits left, and is parked",
        (_OF_A, _OF_A, _OF_B),
        {"first = call_up(name, share, held, ticket)": "first = ''"},
        horizon=4,
    ),
    Defect(
        "a lease that ends still counts for its share",
        "the use of share a is 1, the leases say 0|rejected while its share had permits",
        (_OF_A, _OF_A, _OF_B),
        {
            "held = math.max(0, held - weight(tonumber(string.match(terms, '^%d+'))))": (
                "held = math.max(0, held)"
            )
        },
        horizon=4,
    ),
    Defect(
        "two of one share are in the queue",
        "two waiters of one share are in the queue",
        (_TURN_A, _TURN_A, _TURN_A),
        {"if fitting and first == '' and not last then": "if fitting then"},
        horizon=4,
    ),
]
