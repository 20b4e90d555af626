"""Compare the results of a run with the goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import client, cycles, instructions, serving, shares
from .contenders import OURS, REDIS_PY
from .report import Table

Figure = Callable[[Table], float]


class Goal(NamedTuple):
    """A goal for the result of a benchmark.

    `what`: the name of the goal. `of`: the name of the benchmark. `figure`: a function that returns
    the result from the benchmark's table. `bound`: the maximum of the result or, if `least` is
    True, its minimum. If the bound depends on the server's version, `bound` is a function that
    returns the bound from the table."""

    what: str
    of: str
    figure: Figure
    bound: float | Figure
    least: bool = False


def _cell(row: str, column: str) -> Figure:
    return lambda table: float(_row(table, row)[column])


def _last(column: str) -> Figure:
    return lambda table: float(table.rows[-1][column])


def _row(table: Table, name: str) -> Any:
    return next(row for row in table.rows if row[""] == name)


def _to_best_peer(table: Table) -> float:
    (column,) = (c for c in table.rows[0] if c.startswith("× "))
    return float(_row(table, OURS)[column])


def _both(table: Table) -> float:
    found = (_row(table, name)["instructions"] for name in instructions.CYCLE)
    return float(sum(found))


def _for_server(table: Table) -> float:
    return 140_000 if any("Redis 6" in note for note in table.notes) else 165_000


_PEER = "× python-redis-lock"
_ONE, _ALL = f"× {REDIS_PY}", f"× {cycles.FLOOR}"

GOALS = [
    Goal("time: a new Lock / redis-py's", "uncontended", _cell(cycles.FRESH, _ONE), 0.95),
    Goal("time: a reused Lock / redis-py's", "uncontended", _cell(cycles.REUSED, _ONE), 0.85),
    Goal("time: a Semaphore / redis-py's Lock", "uncontended", _cell(OURS, _ONE), 0.95),
    Goal("time: a Semaphore / two EVALSHA", "uncontended", _cell(OURS, _ALL), 1.1),
    Goal("server: CPU instructions of acquire + release", "instructions", _both, _for_server),
    Goal(
        "client: CPU instructions of a cycle with a new Lock",
        "client",
        _cell(client.FRESH, "instructions"),
        242_000,
    ),
    Goal(
        "Python bytecodes of a limited request, without those of its script calls",
        "client",
        _cell(client.REQUEST, "beyond the scripts"),
        1_000,
    ),
    Goal(
        "gunicorn: limited / unlimited requests per second",
        "gunicorn",
        _cell(serving.LIMITED, f"× {serving.UNLIMITED}"),
        0.6,
        least=True,
    ),
    Goal("limit 1: cycles/s / python-redis-lock's", "limit-1", _cell(OURS, _PEER), 1.3, least=True),
    Goal("limit 1: Jain's index of fairness", "limit-1", _cell(OURS, "Jain"), 0.999, least=True),
    Goal("limit 1: p99 / p50 of the waits", "limit-1", _cell(OURS, "p99/p50"), 2),
    Goal("limit 1: commands per cycle", "limit-1", _cell(OURS, "commands"), 3),
    Goal("200 tasks: cycles/s / best peer's", "tasks", _to_best_peer, 8, least=True),
    Goal("1,000 tasks: cycles/s / best peer's", "waiting-tasks", _to_best_peer, 2, least=True),
    Goal("limit 4: cycles/s / best peer's", "limit-4", _to_best_peer, 1.15, least=True),
    Goal("single caller: p99 of its waits", "shares", _cell(shares.SHARES, "p99 in holds"), 2),
    Goal(
        "grants: with shares / in plain order",
        "shares",
        _cell(shares.SHARES, f"× {shares.PLAIN}"),
        0.97,
        least=True,
    ),
    Goal("server time of acquire: many holders / 10", "holders", _last("acquire × 10"), 1.3),
    Goal("server time of release: many holders / 10", "holders", _last("release × 10"), 1.3),
    Goal("server time of joining: many waiters / 10", "waiters", _last("acquire × 10"), 1.3),
    Goal("server time of a handoff: many waiters / 10", "waiters", _last("release × 10"), 1.3),
    Goal("server time: with / without statistics", "statistics", _cell("on", "both × off"), 1.3),
]


def reached(tables: Mapping[str, Table]) -> Table:
    """Return a table of goals and results. `tables`: the tables of the benchmarks that were run, by
    name. A goal is reached if the column "ratio" is at least 1."""
    table = Table("Goals")
    for what, of, figure, bound, least in GOALS:
        if of not in tables:
            continue
        try:
            found = figure(tables[of])
        except (KeyError, StopIteration, ValueError):  # a library or a tool is missing
            table.notes.append(f"not measured: {what}")
            continue
        aim = bound(tables[of]) if callable(bound) else bound
        ratio = found / aim if least else aim / found
        goal = f"{'≥' if least else '≤'} {aim:,g}"
        table.rows.append({"": what, "goal": goal, "today": found, "ratio": ratio})
    return table
