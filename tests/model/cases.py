"""The settings that the model explores, each with the minimum number of its states."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .clients import FOREVER, Spec
from .world import Setting

#: For ticks of half a millisecond: scripts count whole ones, and local expiry must be earlier.
FINE = {"FIRST": 4, "CLAIM": 4, "HEARTBEAT": 2, "PATIENCE": 2, "ASLEEP": 4, "ALIVE": 4, "GRACE": 2}
SECOND, HALF_A_MILLISECOND = 1_000_000, 500


class Case(NamedTuple):
    setting: Setting
    floor: int  # minimum number of states; fewer mean that the exploration is broken
    micros: int = SECOND
    short: tuple[int, int] | None = None  # horizon and floor of a shorter version of a long case
    large: bool = False  # True if a shorter version would take long too

    @property
    def shorter(self) -> Case:
        """The same case with fewer ticks, which takes a fraction of the time."""
        assert self.short
        horizon, floor = self.short
        name = f"{self.setting.name}, shorter"
        return Case(replace(self.setting, name=name, horizon=horizon), floor, self.micros)


def _plain(**more: object) -> Spec:
    return Spec(**{"begins": 1, **more})  # type: ignore[arg-type]


_FIRST = _plain(begins=0)
_READER = _plain(permits=1, limit=2, kind="w")

CASES = [
    Case(Setting("two clients, any one fault", (_FIRST, _plain()), 7, 1), 20_000),
    Case(Setting("two clients, two cancellations", (_FIRST, _plain()), 6, 2, "cancel"), 3_500),
    Case(
        Setting(
            "a retry without waiting",
            (_plain(wait=False, turns=2), _plain(wait=False)),
            6,
            1,
            "lose delay slow crash",
        ),
        20_000,
        short=(3, 13_000),
    ),
    Case(
        Setting("giving up in time", (_FIRST, _plain(patience=2)), 7, 1), 15_000, short=(3, 7_500)
    ),
    Case(
        Setting("a short budget", (_FIRST, _plain(budget=2)), 6, 2, "lose delay"),
        40_000,
        short=(2, 12_000),
    ),
    Case(
        Setting("renewals", (_plain(begins=0, lease=2, renew=(2,)), _plain()), 7, 1),
        50_000,
        short=(3, 23_500),
    ),
    Case(
        Setting(
            "renewals of different lengths",
            (_plain(begins=0, renew=(2, 5)), _plain(wait=False, begins=6)),
            6,
            1,
            "delay lose",
        ),
        25_000,
        short=(2, 8_600),
    ),
    Case(
        Setting(
            "a renewal beside a background renewal",
            (_plain(begins=0, lease=3, renew=(4,), keep=(2,)), _plain(wait=False, begins=4)),
            4,
            1,
            "delay",
        ),
        40_000,
        short=(1, 20_000),
    ),
    Case(
        Setting(
            "a shorter renewal beside a background renewal",
            (_plain(begins=0, renew=(1,), keep=(3, 2)),),
            4,
            1,
            "delay lose pause",
        ),
        20_000,
        short=(2, 8_700),
    ),
    Case(
        Setting("woken by a message", (_FIRST, _plain(asynchronous=True, renew=(4,))), 6, 1),
        30_000,
        short=(2, 12_600),
    ),
    Case(
        Setting(
            "tasks that are cancelled",
            (_plain(asynchronous=True, begins=0), _plain(asynchronous=True)),
            7,
            1,
            "cancel lose delay",
        ),
        12_000,
        short=(4, 12_900),
    ),
    Case(
        Setting("a full memory", (_plain(begins=0, renew=(3,)), _plain(), _plain()), 5, 1, "full"),
        95_000,
        large=True,
    ),
    Case(
        Setting(
            "a full memory and a death",
            (_FIRST, _plain(asynchronous=True)),
            6,
            2,
            "full crash lose",
        ),
        50_000,
        short=(2, 12_000),
    ),
    Case(
        Setting(
            "two tasks of one event loop, which dies",
            (
                _plain(asynchronous=True, loop=0, begins=0),
                _plain(asynchronous=True, loop=0),
                _FIRST,
            ),
            4,
            1,
            "crash",
        ),
        100_000,
        large=True,
    ),
    Case(
        Setting(
            "permits retained by min_hold after a release",
            (_plain(begins=0, hold=2), _plain()),
            6,
            1,
        ),
        15_000,
        short=(3, 7_800),
    ),
    Case(
        Setting("permanent leases", (_plain(lease=FOREVER, begins=0), _plain(lease=FOREVER)), 7, 1),
        25_000,
        short=(3, 11_000),
    ),
    Case(
        Setting(
            "an operator clears", (_FIRST, _plain(begins=0)), 6, 1, "delay pause", (("clear", ""),)
        ),
        45_000,
        short=(2, 12_400),
    ),
    Case(
        Setting(
            "an operator pauses and resumes",
            (_FIRST, _plain(begins=0)),
            6,
            1,
            "crash",
            (("pause", ""), ("resume", "")),
        ),
        30_000,
        short=(2, 6_200),
    ),
    Case(
        Setting(
            "an operator resizes",
            (
                _plain(limit=3, permits=2, begins=0),
                _plain(limit=3, permits=2, begins=0),
                _plain(limit=3, permits=3),
            ),
            3,
            1,
            "crash",
            (("resize", "2"),),
        ),
        50_000,
        short=(1, 14_000),
    ),
    Case(
        Setting(
            "readers and a writer that becomes one",
            (_plain(permits=0, limit=2, kind="w", share=True, begins=0), _READER, _READER),
            5,
            0,
        ),
        35_000,
        short=(2, 14_000),
    ),
    Case(
        Setting("two permits of two", (_plain(permits=2, limit=2), *[_plain(limit=2)] * 2), 5, 0),
        18_000,
        short=(3, 14_800),
    ),
    Case(
        Setting("three clients, a death", (_FIRST, _FIRST, _plain()), 5, 1, "crash"),
        60_000,
        large=True,
    ),
    Case(
        Setting(
            "two of a share beside another share",
            (
                _plain(limit=2, tenant="a", bound=1, begins=0),
                _plain(limit=2, tenant="a", bound=1),
                _plain(limit=2, tenant="b", bound=1),
            ),
            3,
            1,
            "crash delay",
        ),
        150_000,
        large=True,
    ),
    Case(
        Setting(
            "shares that take turns",
            (_plain(tenant="a", begins=0), _plain(tenant="a"), _plain(tenant="b")),
            4,
            1,
            "crash",
        ),
        110_000,
        large=True,
    ),
    Case(
        Setting(
            "a share whose waiters give up and get no answer",
            (
                _plain(limit=2, tenant="a", bound=1),
                _plain(limit=2, tenant="a", bound=1, patience=2),
            ),
            6,
            1,
            "lose delay crash",
        ),
        20_000,
    ),
    Case(
        Setting("unfair", (_plain(fair=False), *[_plain(fair=False)] * 2), 5, 0),
        20_000,
        large=True,
    ),
    Case(
        Setting(
            "leases of a millisecond", (_plain(), _plain(), _plain(wait=False, begins=6)), 6, 0
        ),
        12_000,
        HALF_A_MILLISECOND,
        short=(4, 11_200),
    ),
]

#: The cases with more faults and more time, which take many minutes.
DEEP = [
    case._replace(
        setting=Setting(
            f"{case.setting.name}, deeper",
            case.setting.clients,
            case.setting.horizon + 1,
            case.setting.faults + 1,
            "crash pause lose delay deaf slow cancel",
            case.setting.operations,
        )
    )
    for case in CASES
] + [
    Case(
        Setting(
            "two clients, two turns", (_plain(turns=2, begins=4), _plain(turns=2, begins=4)), 8
        ),
        0,
    )
]
