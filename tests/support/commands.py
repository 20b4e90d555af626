"""Run commands in tests."""

from __future__ import annotations

import os
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command


def run(*words: object, cwd: Path, **env: str) -> str:
    """Run a command, check that it succeeds, and return its output."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def locks(*words: str, **options: Any) -> str:
    """Call `manage.py locks` in this process. Return its output. `stdout`: a stream for it."""
    out = options.pop("stdout", None) or StringIO()
    call_command("locks", *words, stdout=out, **options)
    return str(out.getvalue())
