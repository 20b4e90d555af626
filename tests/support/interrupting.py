"""Run a call many times, and interrupt each run with an exception, one bytecode later than before.

The exception represents that of a signal handler, which can happen at any bytecode.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import pytest

#: The files with the code that admits a request.
ADMISSION = ("limits/admission.py", "limits/identity.py", "engine/calls.py")


class Interrupted(BaseException):
    pass


def at_any_step(frame: FrameType, event: str) -> bool:
    """Return True if the trace event is a new line or a bytecode."""
    return event in ("line", "opcode")


def after_calls(frame: FrameType, event: str) -> bool:
    """Return True for a bytecode that follows a call. CPython runs a signal handler after a call
    has returned. Since CPython 3.14, this includes the calls of `with`."""
    return event == "opcode" and frame.f_lasti in _ends_of_calls(frame.f_code)


def handles_signals(frame: FrameType, event: str) -> bool:
    """Return True for a bytecode at which the exception of a signal handler can appear: at a call
    or after it, at the start of a function, and at the start of a loop. CPython runs no handler
    elsewhere.

    This excludes a return from the package to its caller. An exception there would already
    interrupt the caller, and not the package."""
    at = event == "opcode" and frame.f_lasti in _interruptible(frame.f_code)
    return at and not _returns_to_us(frame)


def _returns_to_us(frame: FrameType) -> bool:
    back = frame.f_back
    return _returns(frame) and (
        back is None or "/django_redis_sync/" not in back.f_code.co_filename
    )


def _returns(frame: FrameType) -> bool:
    return frame.f_lasti in _returns_of(frame.f_code)


# Cached, because a test asks at each bytecode of each run.


@cache
def _returns_of(code: CodeType) -> set[int]:
    """Return the offsets of the bytecodes that return from a frame."""
    # END_SEND follows the return of an awaited coroutine. CPython runs no signal handler there.
    names = [dis.opname[number] for number in code.co_code[::2]]
    return {2 * n for n, name in enumerate(names) if name.startswith(("RETURN_", "END_SEND"))}


@cache
def _interruptible(code: CodeType) -> set[int]:
    """Return the offsets of the bytecodes at which an exception of a signal handler can appear."""
    ones = [*dis.get_instructions(code)]
    calls = {one.offset for one in ones if one.opname.startswith(("CALL", "BEFORE_WITH"))}
    # A generator that is awaited or delegated to has a RESUME with a greater argument.
    starts = {
        after.offset
        for before, after in pairwise(ones)
        if before.opname == "RESUME" and (before.arg or 0) & 3 < 2
    }
    loops = {
        one.argval
        for one in ones
        if one.opcode in (*dis.hasjrel, *dis.hasjabs)
        and one.argval < one.offset
        and "NO_INTERRUPT" not in one.opname
    }
    return {0} | calls | _ends_of_calls(code) | starts | loops


@cache
def _ends_of_calls(code: CodeType) -> set[int]:
    """Return the offsets of the bytecodes that follow a call."""
    ones = [*dis.get_instructions(code)]
    return {after.offset for before, after in pairwise(ones) if before.opname.startswith("CALL")}


def interruptions(
    call: Callable[[], Any],
    *files: str,
    where: Callable[[FrameType, str], bool] = handles_signals,
    after: tuple[str, ...] = (),
) -> Iterator[str]:
    """Run `call` repeatedly. In run N, raise `Interrupted` at event N, and yield the function and
    line of this event. Stop after the first run that has fewer than N events.

    `files`: ends of the paths of source files. `where`: a function of a frame and a trace event. An
    event counts if it happens in one of `files`, and `where` returns True. `after`: names of
    functions. If it is not empty, events count only after one of these functions was called.
    """
    for nth in range(1, 5000):
        place = _interrupted(call, files, where, after, nth)
        if place is None:
            return
        yield place
    raise AssertionError("the call has more than 4999 events")


def _interrupted(
    call: Callable[[], Any],
    files: tuple[str, ...],
    where: Callable[[FrameType, str], bool],
    after: tuple[str, ...],
    left: int,
) -> str | None:
    """Run `call`, and raise `Interrupted` at event number `left` (from 1). Return the function and
    line of this event, or None if the run has fewer events."""
    place, begun = "", not after

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left, place, begun
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True  # at each event: Python 3.15 forgets it
        begun = begun or frame.f_code.co_name in after
        if begun and where(frame, event):
            left -= 1
            if left == 0:
                place = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise Interrupted
        return trace

    before = sys.gettrace()
    # Python 3.12 traces opcodes only if `f_trace_opcodes` of a frame was set before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return place
    finally:
        sys.settrace(before)
    return None


@pytest.fixture
def run_async() -> Iterator[Callable[..., None]]:
    """Return a function that runs a coroutine. All runs share one event loop, to save time."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture(scope="module")
def fast_collections() -> Iterator[None]:
    """Exempt the objects of earlier tests from garbage collection, so that collections are fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as conftest.py does before the first test
