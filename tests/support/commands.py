"""Commands that tests run to their end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*words: object, cwd: Path, **env: str) -> str:
    """What it printed. It has to end well."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
