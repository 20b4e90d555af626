"""Interrupt a call at each of its bytecodes in turn, as an exception of a signal handler may."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from linecache import getline
from types import FrameType
from typing import Any

#: The files with the code of an admission.
ADMISSION = ("limits/admission.py", "limits/identity.py")


class Interrupted(BaseException):
    pass


def at_any_step(frame: FrameType, event: str) -> bool:
    """Return True at each line and each bytecode."""
    return event in ("line", "opcode")


def inside_ours(frame: FrameType, event: str) -> bool:
    """Return True at each bytecode, except at a return to a caller outside of the package. An
    exception at such a return would be an exception in the caller's code."""
    return event == "opcode" and not _returns_to_us(frame)


def before_returns(frame: FrameType, event: str) -> bool:
    """Return True at each bytecode except returns, at which CPython 3.11 runs no signal handler."""
    return event == "opcode" and not _returns(frame)


def handles_signals(frame: FrameType, event: str) -> bool:
    """Return True where CPython may run a signal handler.

    It runs none in frames without a line, and none at the end of an except block."""
    if frame.f_lineno is None or not inside_ours(frame, event):
        return False
    return "stop.value" not in getline(frame.f_code.co_filename, frame.f_lineno)


def _returns_to_us(frame: FrameType) -> bool:
    back = frame.f_back
    return _returns(frame) and (
        back is None or "/django_redis_sync/" not in back.f_code.co_filename
    )


def _returns(frame: FrameType) -> bool:
    # END_SEND follows the return of an awaited coroutine. CPython runs no signal handler there.
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith(("RETURN_", "END_SEND"))


def interruptions(
    call: Callable[[], Any],
    *files: str,
    where: Callable[[FrameType, str], bool] = inside_ours,
    after: tuple[str, ...] = (),
) -> Iterator[str]:
    """Run `call` repeatedly, with an exception at the next event in each run. Yield its place.

    Events are those in frames of `files` for which `where` returns True. The last run has fewer
    events, so no exception is raised. `after`: count events only from the first frame of a function
    with one of these names.
    """
    for nth in range(1, 5000):
        place = _interrupted(call, files, where, after, nth)
        if place is None:
            return
        yield place
    raise AssertionError("the call never ended without an interruption")


def _interrupted(
    call: Callable[[], Any],
    files: tuple[str, ...],
    where: Callable[[FrameType, str], bool],
    after: tuple[str, ...],
    left: int,
) -> str | None:
    """Return the place where a run was interrupted, or None if it wasn't."""
    place, begun = "", not after

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left, place, begun
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        begun = begun or frame.f_code.co_name in after
        if begun and where(frame, event):
            left -= 1
            if left == 0:
                place = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise Interrupted
        return trace

    before = sys.gettrace()
    # Python 3.12 traces opcodes only if a frame asked for them before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return place
    finally:
        sys.settrace(before)
    return None
