"""Run commands in tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


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
