"""Count the instructions of a process's first thread with valgrind's callgrind.

Other load on the machine doesn't change these counts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def installed() -> bool:
    return shutil.which("valgrind") is not None


def command(dumps: str, *, at_start: bool = True) -> list[str]:
    """Return a command line that runs a program under callgrind. The caller appends the program
    and its arguments.

    `dumps`: prefix of the output files. `at_start`: True to count from the first instruction, which
    makes the start of the process fifty times slower. If False, the count starts when
    `Callgrind.start()` is called."""
    counted = f"--instr-atstart={'yes' if at_start else 'no'}"
    words = [shutil.which("valgrind") or "", "--tool=callgrind", "--quiet", counted]
    return [*words, "--separate-threads=yes", f"--callgrind-out-file={dumps}"]


class Callgrind:
    """Counts the instructions of a process that runs under callgrind: see `command()`."""

    def __init__(self, pid: int, dumps: str) -> None:
        self._pid, self._dumps, self._read = pid, dumps, 0

    def start(self) -> None:
        self._control("--instr=on")

    def count(self, call: Callable[[], T]) -> tuple[int, T]:
        """Call `call`. Return two objects: the number of instructions that the first thread of
        the process executed during the call, and the result of `call`."""
        self._control("--zero")
        result = call()
        self._control("--dump")
        self._read += 1
        text = Path(f"{self._dumps}.{self._read}-01").read_text(encoding="utf-8")
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0, result

    def _control(self, word: str) -> None:
        command = ["callgrind_control", word, str(self._pid)]
        subprocess.run(command, check=True, capture_output=True)
