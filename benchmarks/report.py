"""The results of a benchmark, as a text table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_PACKAGES = [
    "django-redis-sync",
    "django",
    "django-redis",
    "redis",
    "hiredis",
    "python-redis-lock",
    "pottery",
    "Redis-Semaphore",
    "steindamm",
    "async-redis-rate-limiters",
    "django-smart-ratelimit",
]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def ratios(values: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """For each name, divide its figure by the figure of `base`, in each round. Return the median
    of these ratios. `values`: for each name, a list with one figure per round."""
    return {
        name: median([own / other for own, other in zip(mine, values[base], strict=False) if other])
        for name, mine in values.items()
    }


@dataclass
class Table:
    """The table of one benchmark. A row is a dict from column to value."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        cells = [[_shown(row.get(column, "")) for column in columns] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        lines = [
            "  ".join(_aligned(cell, width, i) for i, (cell, width) in enumerate(pairs)).rstrip()
            for pairs in (list(zip(line, widths, strict=True)) for line in [columns, *cells])
        ]
        notes = map("  ! {}".format, self.notes)
        return "\n".join([self.title, *(f"  {line}" for line in lines), *notes])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def machine(redis_version: str) -> dict[str, Any]:
    """Return data about the processor and the software, but nothing that identifies the machine."""
    packages, missing = {}, []
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "redis-server": redis_version,
        "packages": packages,
        "missing": missing,
    }


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def write(path: Path, where: dict[str, Any], tables: Mapping[str, Table]) -> None:
    found = {name: vars(table) for name, table in tables.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": where, "benchmarks": found}, indent=1) + "\n")
