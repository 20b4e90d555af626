"""Change the wall clock that a program sees, with a C library that the program loads."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")


def reason() -> str:
    """Return why a clock can't be moved on this machine, or "" if it can."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD needs Linux"
    return "" if COMPILER else "moving a clock needs a C compiler (cc, gcc or clang)"


class Clock:
    """A wall clock that `shift()` moves. Programs whose variables include `environment` see it."""

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "clock.so", folder / "offset"
        self._file.write_bytes(struct.pack("=q", 0))
        words = [COMPILER, "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*words, "-o", str(library), str(SOURCE)], check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIM": str(self._file)}

    def shift(self, seconds: float) -> None:
        """Set the clock to the true time plus `seconds`."""
        with open(self._file, "r+b", buffering=0) as file:  # programs have mapped this same file
            os.pwrite(file.fileno(), struct.pack("=q", int(seconds * 1e6)), 0)
