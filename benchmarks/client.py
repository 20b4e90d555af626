"""Count the client's Python bytecodes and processor instructions per cycle. A cycle is, for
example, one acquire and its release. Other load on the machine changes times, but not these counts.

The benchmark counts bytecodes in its own process. If valgrind is installed, the benchmark also
counts instructions. For this, a child process under valgrind, `python -m benchmarks.client URL`,
runs the cycles. The child process reads the names of the cycles from stdin.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

from . import callgrind, contenders, project
from .cycles import FLOOR, acquire_and_release, minimal
from .report import Table

Cycle = Callable[[], Any]

FRESH, REUSED, NAMED = "a new Lock", "a reused Lock", "a new Lock with a new name"
WITH = "a reused Lock, `with`"
TAKEN, REQUEST = "a semaphore: take, release", "a limited request: enter, release"
#: `_WARM`: cycles to run before counting. `_CYCLES`: cycles in one count of instructions.
#: `_ROUNDS`: number of counts. The result is the lowest count.
_WARM, _CYCLES, _ROUNDS = 50, 50, 3


def client(url: str, quick: bool) -> Table:
    """Count bytecodes. If valgrind is installed, also count instructions, which takes a minute."""
    table = Table("Bytecodes and CPU instructions of a cycle in the client")
    made = _cycles()
    for name, cycle in made.items():
        all_of_it, scripts = bytecodes(cycle)
        row = {"": name, "bytecodes": all_of_it}
        table.rows.append({**row, "beyond the scripts": all_of_it - scripts if scripts else ""})
    if not callgrind.installed():
        table.notes.append("no instructions were counted, because valgrind is not installed")
    elif not quick:
        for row, taken in zip(table.rows, instructions(url, list(made)), strict=True):
            row["instructions"] = taken
    table.notes.append(f"CPython {sys.version.split()[0]}")
    return table


def _cycles() -> dict[str, Cycle]:
    """Return the cycles to count, by name. No cycle has to wait for a permit."""
    from django_redis_sync import Lock, Semaphore

    lock, semaphore, numbers = Lock("client-reused"), Semaphore("client-taken", 100), count()
    redis_py = contenders.redis_py("", "client-redis-py", 1)()

    return {
        FLOOR: minimal(),
        contenders.REDIS_PY: lambda: acquire_and_release(redis_py),
        REUSED: lambda: acquire_and_release(lock),
        FRESH: lambda: acquire_and_release(Lock("client-fresh")),
        NAMED: lambda: acquire_and_release(Lock(f"client-{next(numbers)}")),
        WITH: lambda: _enter_and_leave(lock),
        TAKEN: lambda: semaphore._take(False).release(),  # type: ignore[union-attr]
        REQUEST: _request(),
    }


def _enter_and_leave(lock: Any) -> None:
    with lock:
        pass


def _request() -> Cycle:
    from django.test import RequestFactory
    from django.urls import resolve

    from django_redis_sync.limits.admission import admit
    from django_redis_sync.limits.policy import endpoint_of

    request = RequestFactory().get("/limited")
    request.resolver_match = resolve("/limited")
    as_it_came, policies = dict(vars(request)), [endpoint_of(request).policy]

    def cycle() -> None:
        request.__dict__ = dict(as_it_came)
        admit(policies, request).release()  # type: ignore[union-attr]

    return cycle


def bytecodes(cycle: Cycle) -> tuple[int, int]:
    """Return two numbers: how many bytecodes a cycle executes, and how many of these bytecodes
    send scripts and read the replies."""
    from django_redis_sync.engine.server import Server

    for _ in range(_WARM):
        cycle()
    found = [_traced(cycle, Server.run.__code__) for _ in range(9)]
    return statistics.median_low(found)


def _traced(cycle: Cycle, script: Any) -> tuple[int, int]:
    counts, inside = [0, 0], 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal inside
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            counts[inside > 0] += 1
        elif frame.f_code is script:
            inside += {"call": 1, "return": -1}.get(event, 0)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cycle()
    finally:
        sys.settrace(before)
    return sum(counts), counts[True]


def instructions(url: str, names: list[str]) -> Iterator[int]:
    """Run the cycles `names` in a child process. Yield the CPU instructions of each cycle."""
    with contextlib.ExitStack() as stack:
        dumps = f"{stack.enter_context(tempfile.TemporaryDirectory())}/client"
        words = callgrind.command(dumps, at_start=False)
        command = [*words, sys.executable, "-m", "benchmarks.client", url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        child = stack.enter_context(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
        stack.callback(child.terminate)

        def make(name: str, cycles: int) -> None:
            print(cycles, name, file=child.stdin, flush=True)
            if not child.stdout.readline():
                raise RuntimeError("the process under valgrind ended before it ran all cycles")

        make(names[0], 1)
        counter = callgrind.Callgrind(child.pid, dumps)
        counter.start()
        for name in names:
            make(name, _WARM)
            # Use the minimum, because a background thread may have added instructions to a count.
            taken = [counter.count(partial(make, name, _CYCLES))[0] for _ in range(_ROUNDS)]
            yield min(taken) // _CYCLES


def _obey(url: str) -> None:
    project.setup(url)
    made = _cycles()
    for line in sys.stdin:
        number, _, name = line.strip().partition(" ")
        for _ in range(int(number)):
            made[name]()
        print("done", flush=True)


if __name__ == "__main__":
    _obey(sys.argv[1])
