"""The list: every lock that the exam knows, with what its own documentation claims."""

from __future__ import annotations

from functools import partial

from .adapter import LEASE, Entry
from .adapters import planted
from .adapters.correct import SerialLock
from .judge import Claims

CORRECT = {
    "multiprocessing": Entry(
        "multiprocessing's semaphore",
        "exam.adapters.correct:MultiprocessingLock",
        Claims(punctual=True),
        needs="",
        prepare="exam.adapters.correct:share",
    ),
    "file": Entry(
        "flock(2)", "exam.adapters.correct:FileLock", Claims(lease=0, punctual=True), needs=""
    ),
    "serial": Entry(
        "a serial server",
        "exam.adapters.correct:SerialLock",
        Claims(lease=LEASE, fair=True, fenced=True, told=True, punctual=True, dead_waiter=0),
        needs="",
        most=1000,
        prepare="exam.adapters.serial:serve",
    ),
}

_SERIAL = CORRECT["serial"]
PLANTED = {
    defect: Entry(
        f"planted: {defect}", make, _SERIAL.claims, needs="", most=1000, prepare=_SERIAL.prepare
    )
    for defect, make in {
        **{defect: partial(SerialLock, defect=defect) for defect in planted.OF_THE_SERVER},
        **planted.OF_THE_CLIENT,
    }.items()
}

ENTRIES: dict[str, Entry] = {}


def find(key: str) -> Entry:
    """An entry by its key; a word with a colon is an adapter of one's own, "module:ENTRY"."""
    if ":" in key:
        import importlib

        module, _, name = key.partition(":")
        found: Entry = getattr(importlib.import_module(module), name)
        return found
    return {**ENTRIES, **CORRECT, **PLANTED}[key]
