"""A server whose wall clock can be moved while it runs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def reason() -> str:
    """Return why a clock can't be moved here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD is Linux's"
    if compiler() is None:
        return "a C compiler (cc, gcc or clang) is needed for the clock shim"
    return ""


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


class Clock:
    """The shim, compiled into `folder`. Programs started with `environment` see its clock."""

    def __init__(self, folder: Path) -> None:
        self.library, self._file = folder / "clock.so", folder / "offset"
        self._file.write_bytes(struct.pack("=q", 0))
        words = [str(compiler()), "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*words, "-o", str(self.library), str(SOURCE)], check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCK_SHIM": str(self._file)}

    def shift(self, seconds: float) -> None:
        """Put the clock this many seconds ahead of the true time."""
        with open(self._file, "r+b", buffering=0) as file:  # in place: it is mapped
            os.pwrite(file.fileno(), struct.pack("=q", int(seconds * 1e6)), 0)
