"""Benchmarks in which many threads or tasks acquire permits at the same time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import contenders, crowd
from .commands import counted
from .contenders import OURS
from .crowd import Crowd, Failed, Outcome
from .report import Row, Table, median, ratios


def _race(
    title: str,
    of: Crowd,
    url: str,
    quick: bool,
    base: str | None = None,
    without: tuple[str, ...] = (),
) -> Table:
    """Run each contender five times with the load `of`, or once if `quick` is true.

    `base`: the contender with the ratio 1. If it is None or not installed, use the fastest other
    library instead. `without`: contenders to leave out."""
    table, of = Table(title), replace(of, seconds=0.7) if quick else of
    kind = contenders.ASYNC if of.asynchronous else contenders.SYNC
    names = contenders.installed(kind, of.limit, *without)
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for _ in range(1 if quick else 5):
        for name in list(names):
            try:
                found[name].append(crowd.run(name, of, url))
            except Failed as error:
                table.notes.append(str(error))
                names.remove(name)
    rates = {name: [outcome.rate for outcome in found[name]] for name in names}
    peers = [name for name in names if name != OURS]
    if base not in names:
        base = max(peers, key=lambda name: median(rates[name]), default=OURS)
    to_base = ratios(rates, base)
    cpu = ratios({name: [outcome.cpu for outcome in found[name]] for name in names}, base)
    for name in names:
        outcomes = found[name]
        row: Row = {"": name, "cycles/s": median(rates[name]), f"× {base}": to_base[name]}
        row["Jain"] = median([outcome.jain for outcome in outcomes])
        row["p99/p50"] = median([outcome.spread for outcome in outcomes])
        row["CPU µs"] = median([outcome.cpu for outcome in outcomes]) * 1e6
        row["CPU ×"] = cpu[name]
        row["connections"] = max(outcome.connections for outcome in outcomes)
        row["commands"] = _commands(name, of, url)
        table.rows.append(row)
        most = max(outcome.most for outcome in outcomes)
        errors = [error for outcome in outcomes for error in outcome.errors]
        if errors:
            table.notes.append(f"{name}: {len(errors)} workers ended early, e.g. by {errors[0]}")
        if most > of.limit:
            table.notes.append(f"{name} exceeded its limit: {most} permits were held at once")
    return table


def _commands(name: str, of: Crowd, url: str) -> float:
    """Return the commands per cycle. Count them in a new run with MONITOR, which slows Redis."""
    short = replace(of, seconds=0.3)
    with counted(url) as counts:
        outcome = crowd.run(name, short, url)
    return sum(counts.values()) / max(1.0, outcome.rate * short.seconds)


#: Handoffs at limit 1: each holder releases its permit immediately.
limit_1 = partial(
    _race,
    "Limit 1, hold 0, 2 processes × 8 threads",
    Crowd(limit=1, hold=0, processes=2, workers=8, seconds=1.2),
    base="python-redis-lock",
    without=("pottery",),
)
limit_4 = partial(
    _race, "Limit 4, hold 2 ms, 2 processes × 50 threads", Crowd(4, 0.002, 2, 50, seconds=1.2)
)
tasks = partial(
    _race, "Async, 200 tasks, never full", Crowd(1000, 0, 1, 200, seconds=1.5, asynchronous=True)
)
_WAITING = Crowd(100, 0.01, processes=1, workers=1000, seconds=1.5, asynchronous=True)
waiting_tasks = partial(_race, "Async, 1,000 tasks, limit 100, hold 10 ms", _WAITING)
