"""A shim that can move the wall clock of a running program."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def reason() -> str:
    """Return why a clock can't be moved on this machine, or ""."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD needs Linux"
    if compiler() is None:
        return "a C compiler (cc, gcc or clang) is needed for the clock shim"
    return ""


def compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


class Clock:
    """The shim, compiled into `folder`. Programs that are started with `environment` use it."""

    def __init__(self, folder: Path) -> None:
        self.library, self._file = folder / "clock.so", folder / "offset"
        self._file.write_bytes(struct.pack("=q", 0))
        words = [str(compiler()), "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*words, "-o", str(self.library), str(SOURCE)], check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCK_SHIM": str(self._file)}

    def shift(self, seconds: float) -> None:
        """Set the clock this many seconds ahead of the true time."""
        with open(self._file, "r+b", buffering=0) as file:  # in place: the file is mapped
            os.pwrite(file.fileno(), struct.pack("=q", int(seconds * 1e6)), 0)
