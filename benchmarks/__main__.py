"""Run all benchmarks, which compare this project with other libraries, and print tables."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from devtools.servers import NoServer, RedisServer

from . import (
    client,
    contenders,
    crowds,
    cycles,
    goals,
    instructions,
    project,
    report,
    server,
    serving,
    shares,
)

BENCHMARKS = {
    "uncontended": cycles.uncontended,
    "client": client.client,
    "instructions": instructions.server,
    "statistics": server.statistics,
    "limit-1": crowds.limit_1,
    "limit-4": crowds.limit_4,
    "tasks": crowds.tasks,
    "waiting-tasks": crowds.waiting_tasks,
    "holders": server.by_holders,
    "waiters": server.by_waiters,
    "shares": shares.shares,
    "gunicorn": serving.gunicorn,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="measure for about a minute, less precisely"
    )
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="may be repeated")
    json = Path("build", "benchmarks.json")
    parser.add_argument("--json", type=Path, default=json, metavar="FILE", help=f"default: {json}")
    options = parser.parse_args()
    try:
        # Start a server of its own, because the run deletes all data between the benchmarks.
        with RedisServer(config={"maxclients": 20_000}) as server:
            tables = run(server.url, options.only or list(BENCHMARKS), options.quick)
            where = report.machine(contenders.client(server.url).info("server")["redis_version"])
    except NoServer as error:
        print(error, file=sys.stderr)
        return 1
    if where["missing"]:
        print(f"Not installed, so not measured: {', '.join(where['missing'])}")
    report.write(options.json, where, tables)
    print(f"{options.json} written")
    return 0


def run(url: str, names: list[str], quick: bool) -> dict[str, report.Table]:
    project.setup(url)
    tables = {}
    for name in names:
        start = time.monotonic()
        tables[name] = BENCHMARKS[name](url, quick)
        contenders.client(url).flushdb()
        print(f"{tables[name]}\n  ({name}, {time.monotonic() - start:.0f} s)\n", flush=True)
    tables["goals"] = goals.reached(tables)
    print(f"{tables['goals']}\n")
    return tables


if __name__ == "__main__":
    sys.exit(main())
