"""Instructions of a process's first thread, as valgrind's callgrind counts them.

No other load moves them; how often a thread that works every two seconds comes depends on it.
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
    """What to write before a command to have it counted. `dumps`: where, a path to add to.
    `at_start`: count from the first instruction on, which makes a start fifty times as long."""
    counted = f"--instr-atstart={'yes' if at_start else 'no'}"
    words = [shutil.which("valgrind") or "", "--tool=callgrind", "--quiet", counted]
    return [*words, "--separate-threads=yes", f"--callgrind-out-file={dumps}"]


class Callgrind:
    """Reads the counter of a process that was started by `command`."""

    def __init__(self, pid: int, dumps: str) -> None:
        self._pid, self._dumps, self._read = pid, dumps, 0

    def start(self) -> None:
        self._control("--instr=on")

    def count(self, call: Callable[[], T]) -> tuple[int, T]:
        """The instructions that the first thread took meanwhile, and the result of `call`."""
        self._control("--zero")
        result = call()
        self._control("--dump")
        self._read += 1
        text = Path(f"{self._dumps}.{self._read}-01").read_text(encoding="utf-8")
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0, result

    def _control(self, word: str) -> None:
        said = ["callgrind_control", word, str(self._pid)]
        subprocess.run(said, check=True, capture_output=True)
