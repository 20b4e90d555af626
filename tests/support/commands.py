"""Run other programs and `manage.py locks` in tests."""

from __future__ import annotations

import os
import socket
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command


def run(*words: object, cwd: Path, **env: str) -> str:
    """Run a program, check that it succeeds, and return its output. `env`: added variables."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_alive(pid: int) -> bool:
    """Return True if the process `pid` runs. Return False for a zombie, which has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def accepts(port: int) -> bool:
    """Return True if a server listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def locks(*words: str, **options: Any) -> str:
    """Call `manage.py locks` in this process, and return its output.

    `stdout`: a stream for the output, if the type of the stream matters."""
    out = options.pop("stdout", None) or StringIO()
    call_command("locks", *words, stdout=out, **options)
    return str(out.getvalue())
