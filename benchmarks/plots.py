"""Draw plots of the results of a run, for RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .contenders import OURS, REDIS_PY
from .report import Table

#: The plots: name of a benchmark -> (column of its table, label below the bars)
_SHOWN = {
    "uncontended": (f"× {REDIS_PY}", "time of one cycle, redis-py's Lock = 1 (less is better)"),
    "limit-1": ("cycles/s", "cycles per second at limit 1, 2 processes of 8 threads"),
    "tasks": ("cycles/s", "async cycles per second, 200 tasks, none of which has to wait"),
}
_OURS, _OTHERS = "#0c4b33", "#b4c4bc"


def draw(folder: Path, tables: Mapping[str, Table]) -> list[Path]:
    """Draw the plots for the benchmarks in `tables`, and return the paths of the SVG files."""
    import matplotlib

    matplotlib.use("svg")
    # Draw the same file each time for the same data.
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none"})
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (column, label) in _SHOWN.items():
        if name not in tables:
            continue
        rows = sorted(tables[name].rows, key=lambda row: row[column], reverse="×" in column)
        figure, axes = pyplot.subplots(figsize=(6, 0.4 + 0.3 * len(rows)))
        names = [row[""] for row in rows]
        colours = [_OURS if name.startswith(OURS) else _OTHERS for name in names]
        bars = axes.barh(names, [row[column] for row in rows], color=colours)
        axes.bar_label(bars, fmt="{:,.2f}" if "×" in column else "{:,.0f}", padding=3, fontsize=8)
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        path = folder / f"performance-{name}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
        drawn.append(path)
    return drawn
