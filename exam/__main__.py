"""`python -m exam`: puts locks through faults, judges them from outside, and prints one table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from devtools.servers import NoServer, RedisServer

from . import report, trial
from .entries import ENTRIES, find
from .examine import Seen
from .faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
#: One fault takes no longer, whatever hangs.
FAULT_SECONDS = 240


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exam", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="NAME", help="a lock, or module:ENTRY")
    add("--fault", action="append", default=[], choices=FAULTS, metavar="NAME", help="a fault")
    add("--list", action="store_true", help="the names of both")
    add("--write", action="store_true", help="put it, and what FILE has, into docs/exam.md")
    add("--strict", action="store_true", help="exit 1 when this project fails anywhere")
    add("--at-once", type=int, default=2, metavar="N", help="locks side by side (default: 2)")
    add("--self", action="store_true", help="judge the judge: broken locks and right ones")
    add("--times", type=int, default=20, metavar="N", help="--self: trials of each (default: 20)")
    add(
        "--json",
        type=Path,
        default=Path("build", "exam.json"),
        metavar="FILE",
        help="default: build/exam.json",
    )
    options = parser.parse_args()
    if options.self:
        return trial.main(options.times, options.at_once, options.only)
    if options.list:
        print("locks: ", *ENTRIES, "\nfaults:", *FAULTS)
        return 0
    try:
        server = _server_version()
    except NoServer as error:
        print(error, file=sys.stderr)
        return 1
    return _exam(options, server)


def _exam(options: argparse.Namespace, server: str) -> int:
    keys, faults = options.only or list(ENTRIES), options.fault or list(FAULTS)
    absent = {key: why for key in keys if (why := find(key).missing())}
    for key, why in absent.items():
        print(f"{key}: skipped, {why}")
    table: report.Table = {}
    start, printing = time.monotonic(), threading.Lock()

    def one(key: str) -> None:
        for seen in examined(key, faults):
            with printing:
                table[key, seen.fault] = seen
                _tell(seen)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, [key for key in keys if key not in absent]))
    ordered = {(k, f): table[k, f] for k in keys for f in faults if (k, f) in table}
    print(f"\n{report.text(ordered, server, absent)}\n")
    everything = {**_read(options.json), **ordered}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(seen) for seen in everything.values()], indent=1))
    print(f"{time.monotonic() - start:.0f} s; {options.json} written")
    if options.write:
        report.write(report.text(everything, server, absent))
        print(f"{report.PAGE.relative_to(ROOT)} written")
    failed = [seen for seen in ordered.values() if seen.outcome in ("failed", "broken off")]
    ours = report.PARTS["This project"]
    return int(options.strict and any(seen.entry in ours for seen in failed))


def _read(path: Path) -> report.Table:
    """What earlier runs saw."""
    if not path.exists():
        return {}
    read = [Seen.read(words) for words in json.loads(path.read_text())]
    known = [seen for seen in read if seen.entry in ENTRIES and seen.fault in FAULTS]
    return {(seen.entry, seen.fault): seen for seen in known}


def examined(key: str, faults: list[str]) -> Iterator[Seen]:
    """A lock through the faults, in a process that is started anew after one that hangs."""
    left = list(faults)
    while left:
        words = [sys.executable, "-m", "exam.examine", key, *left]
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        hangs = threading.Timer(FAULT_SECONDS, process.terminate)
        hangs.start()
        for line in process.stdout:
            hangs.cancel()
            left.pop(0)
            yield Seen.read(json.loads(line))
            hangs = threading.Timer(FAULT_SECONDS, process.terminate)
            hangs.start()
        hangs.cancel()
        process.wait()
        if left:
            why = f"it was not over after {FAULT_SECONDS} s, or its examiner ended"
            yield Seen(key, left.pop(0), "broken off", why=why)


def _tell(seen: Seen) -> None:
    print(f"{seen.entry:26} {seen.fault:16} {report.cell(seen)}", flush=True)


def _server_version() -> str:
    import redis

    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        return str(client.info("server")["redis_version"])


if __name__ == "__main__":
    sys.exit(main())
