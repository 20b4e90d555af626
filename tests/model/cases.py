"""The cases of the checker: clients, faults, and how many states it must reach at least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from .clients import FOREVER, Spec
from .world import Setting

#: Time constants of the scripts in ticks of 0.5 ms, for cases with leases of a few ms. Scripts
#: round times to whole ms, which is two ticks. The checker verifies that no rounding makes a local
#: expiry later than the end of the lease on the server.
FINE = {"FIRST": 4, "CLAIM": 4, "HEARTBEAT": 2, "PATIENCE": 2, "ASLEEP": 4, "ALIVE": 4, "GRACE": 2}
SECOND, HALF_A_MILLISECOND = 1_000_000, 500


class Case(NamedTuple):
    setting: Setting
    floor: int  # minimum number of states that a correct exploration finds
    micros: int = SECOND
    deep: bool = False  # True if the exploration takes long

    @property
    def ticks(self) -> dict[str, int]:
        return FINE if self.micros != SECOND else {}


def _plain(**more: Any) -> Spec:
    return Spec(**{"begins": 1, **more})


_ANY = "crash pause lose delay deaf slow"
_FIRST, _NEXT, _TRIES = _plain(begins=0), _plain(), _plain(wait=False, begins=6)
_READER, _TASK = _plain(limit=2, kind="w"), _plain(asynchronous=True)
_OF_A, _OF_B = (_plain(limit=2, share=share, share_limit=1) for share in "ab")
_RESIZED, _UNFAIR = _plain(limit=3, permits=2, begins=0), _plain(fair=False)

#: The arguments of `_cases()`: name, clients, number of ticks, number of faults, kinds of faults,
#: minimum number of states, a shorter version, operator actions, and the length of a tick in µs.
#: The shorter version is a pair (ticks, minimum number of states). It is 0 for a case that takes
#: long but has no shorter version, and None for a case that is short itself.
# fmt: off
_ROWS: list[tuple[Any, ...]] = [
    ("two clients, any one fault", (_FIRST, _NEXT), 7, 1, _ANY, 20_000, (5, 19_900)),
    ("two clients, two cancellations", (_FIRST, _NEXT), 6, 2, "cancel", 3_500, (4, 7_700)),
    ("a retry without waiting", (_plain(wait=False, turns=2), _plain(wait=False)),
     6, 1, "lose delay slow crash", 20_000, (3, 13_000)),
    ("giving up in time", (_FIRST, _plain(patience=2)), 7, 1, _ANY, 15_000, (3, 7_500)),
    ("a short budget", (_FIRST, _plain(budget=2)), 6, 2, "lose delay", 40_000, (2, 12_000)),
    ("renewals", (_plain(begins=0, lease=2, renew=(2,)), _NEXT), 7, 1, _ANY, 50_000, (2, 14_600)),
    ("renewals of different lengths", (_plain(begins=0, renew=(2, 5)), _TRIES),
     6, 1, "delay lose", 25_000, (2, 8_600)),
    ("a renewal beside a background renewal",
     (_plain(begins=0, lease=3, renew=(4,), background=(2,)), _plain(wait=False, begins=4)),
     4, 1, "delay", 40_000, (1, 20_000)),
    ("a shorter renewal beside a background renewal",
     (_plain(begins=0, renew=(1,), background=(3, 2)),),
     4, 1, "delay lose pause", 20_000, (2, 8_700)),
    ("woken by a message", (_FIRST, _plain(asynchronous=True, renew=(4,))),
     6, 1, _ANY, 30_000, (2, 12_600)),
    ("tasks that are cancelled", (_plain(asynchronous=True, begins=0), _TASK),
     7, 1, "cancel lose delay", 12_000, (4, 12_900)),
    ("a full memory", (_plain(begins=0, renew=(3,)), _NEXT, _NEXT), 5, 1, "full", 95_000, 0),
    ("a full memory and a death", (_FIRST, _TASK), 6, 2, "full crash lose", 50_000, (2, 12_000)),
    ("two tasks of one event loop, which dies",
     (_plain(asynchronous=True, loop=0, begins=0), _plain(asynchronous=True, loop=0), _FIRST),
     4, 1, "crash", 100_000, 0),
    ("permits retained by min_hold after a release", (_plain(begins=0, hold=2), _NEXT),
     6, 1, _ANY, 15_000, (3, 7_800)),
    ("permanent leases", (_plain(lease=FOREVER, begins=0), _plain(lease=FOREVER)),
     7, 1, _ANY, 25_000, (2, 8_600)),
    ("an operator clears", (_FIRST, _FIRST),
     6, 1, "delay pause", 45_000, (2, 12_400), (("clear", ""),)),
    ("an operator pauses and resumes", (_FIRST, _FIRST),
     6, 1, "crash", 30_000, (2, 6_200), (("pause", ""), ("resume", ""))),
    ("an operator resizes", (_RESIZED, _RESIZED, _plain(limit=3, permits=3)),
     3, 1, "crash", 50_000, (1, 14_000), (("resize", "2"),)),
    ("readers and a writer that becomes one",
     (_plain(permits=0, limit=2, kind="w", downgrade=True, begins=0), _READER, _READER),
     5, 0, "", 35_000, (1, 7_600)),
    ("two permits of two", (_plain(permits=2, limit=2), *[_plain(limit=2)] * 2),
     5, 0, "", 18_000, (2, 8_600)),
    ("three clients, a death", (_FIRST, _FIRST, _NEXT), 5, 1, "crash", 60_000, 0),
    ("two of a share beside another share", (replace(_OF_A, begins=0), _OF_A, _OF_B),
     3, 1, "crash delay", 150_000, 0),
    ("shares that take turns",
     (_plain(share="a", begins=0), _plain(share="a"), _plain(share="b")),
     4, 1, "crash", 110_000, 0),
    ("a share whose waiters give up and get no answer", (_OF_A, replace(_OF_A, patience=2)),
     6, 1, "lose delay crash", 20_000, (3, 8_900)),
    ("unfair", (_UNFAIR, _UNFAIR, _UNFAIR), 5, 0, "", 20_000, 0),
    ("leases of a millisecond", (_NEXT, _NEXT, _TRIES),
     6, 0, "", 12_000, (4, 11_200), (), HALF_A_MILLISECOND),
]
# fmt: on


def _cases(
    name: str,
    clients: tuple[Spec, ...],
    horizon: int,
    faults: int,
    kinds: str,
    floor: int,
    shorter: Any = None,
    operations: tuple[tuple[str, str], ...] = (),
    micros: int = SECOND,
) -> list[Case]:
    setting = Setting(name, clients, horizon, faults, kinds, operations)
    found = [Case(setting, floor, micros, deep=shorter is not None)]
    if shorter:
        horizon, floor = shorter
        setting = replace(setting, name=f"{name}, shorter", horizon=horizon)
        found.append(Case(setting, floor, micros))
    return found


CASES = [case for row in _ROWS for case in _cases(*row)]
