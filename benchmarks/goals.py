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

    `of`: the name of the benchmark. `figure`: function that reads the result from the benchmark's
    table. `bound`: the highest result that reaches the goal. If `least` is True, `bound` is the
    lowest such result. If the bound depends on the server, `bound` is a function of the table."""

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
    Goal("a new Lock, to redis-py's", "uncontended", _cell(cycles.FRESH, _ONE), 0.95),
    Goal("a reused Lock, to redis-py's", "uncontended", _cell(cycles.REUSED, _ONE), 0.85),
    Goal("a Semaphore, to redis-py's Lock", "uncontended", _cell(OURS, _ONE), 0.95),
    Goal("a Semaphore, to two minimal EVALSHA", "uncontended", _cell(OURS, _ALL), 1.1),
    Goal("server instructions, acquire + release", "instructions", _both, _for_server),
    Goal(
        "client instructions, a new Lock",
        "client",
        _cell(client.FRESH, "instructions"),
        242_000,
    ),
    Goal(
        "bytecodes of a limited request beyond two scripts",
        "client",
        _cell(client.REQUEST, "beyond the scripts"),
        1_000,
    ),
    Goal(
        "gunicorn, 8 threads: limited to unlimited",
        "gunicorn",
        _cell(serving.LIMITED, f"× {serving.UNLIMITED}"),
        0.6,
        least=True,
    ),
    Goal("limit 1: cycles, to python-redis-lock", "limit-1", _cell(OURS, _PEER), 1.3, least=True),
    Goal("limit 1: Jain", "limit-1", _cell(OURS, "Jain"), 0.999, least=True),
    Goal("limit 1: p99/p50", "limit-1", _cell(OURS, "p99/p50"), 2),
    Goal("limit 1: commands", "limit-1", _cell(OURS, "commands"), 3),
    Goal("async, 200 tasks, to the best peer", "tasks", _to_best_peer, 8, least=True),
    Goal("async, 1,000 tasks, to the best peer", "waiting-tasks", _to_best_peer, 2, least=True),
    Goal("limit 4, 2 × 50 threads, to the best peer", "limit-4", _to_best_peer, 1.15, least=True),
    Goal("one beside a flood: p99 in holds", "shares", _cell(shares.SHARES, "p99 in holds"), 2),
    Goal(
        "a flood with shares: grants, to plain order",
        "shares",
        _cell(shares.SHARES, f"× {shares.PLAIN}"),
        0.97,
        least=True,
    ),
    Goal("server time, most holders to 10: acquire", "holders", _last("acquire × 10"), 1.3),
    Goal("server time, most holders to 10: release", "holders", _last("release × 10"), 1.3),
    Goal("server time, with statistics to without", "statistics", _cell("on", "both × off"), 1.3),
]


def reached(tables: Mapping[str, Table]) -> Table:
    """Return a table with the goals of the benchmarks that were run. If the "ratio" of a goal is at
    least 1, the goal is reached."""
    table = Table("Goals")
    for what, of, figure, bound, least in GOALS:
        if of not in tables:
            continue
        try:
            found = figure(tables[of])
        except (KeyError, StopIteration, ValueError):  # a peer or a tool is not installed
            table.notes.append(f"not measured: {what}")
            continue
        aim = bound(tables[of]) if callable(bound) else bound
        ratio = found / aim if least else aim / found
        goal = f"{'≥' if least else '≤'} {aim:,g}"
        table.rows.append({"": what, "goal": goal, "today": found, "ratio": ratio})
    return table
