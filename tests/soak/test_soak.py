"""Run a short soak, and test the functions that judge its result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.servers import find_server

from .run import Outcome, overlaps


@pytest.mark.slow
@pytest.mark.skipif(find_server() is None, reason="starts its own servers")
def test_short_soak_finds_no_error() -> None:
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-W", "error", "-m", "tests.soak", "--minutes", "0.2", "--seed", "7"]
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO", "SYNC_TEST"))}
    done = subprocess.run(
        words, cwd=root, env=keep, capture_output=True, text=True, timeout=110, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "verdict" in done.stdout and "good" in done.stdout


def test_leases_held_at_the_same_time_are_reported_as_overlaps(tmp_path: Path) -> None:
    path = tmp_path / "leases"
    path.write_text("kept lock 1 10.0 11.0\nkept lock 2 11.0 12.0\nkept hard 3 10.5 10.6\n")
    assert (3, []) == overlaps(str(path))
    # The holder with fence 2 began before the holder with fence 1 ended. Two lines with one fence
    # are the same lease.
    path.write_text("kept lock 2 10.9 12.0\nkept lock 1 10.0 11.0\nkept lock 2 11.5 12.0\n")
    overlap = "kept lock: 2 began at 10.900000; 1 was treated as held for 0.100000 s more"
    assert (3, [overlap]) == overlaps(str(path))


@pytest.mark.parametrize("field", ["violations", "unexpected", "residue", "stuck", "overlapping"])
def test_outcome_is_bad_when_the_soak_found_an_error(field: str) -> None:
    bad, good = Outcome(1), Outcome(1, overlapping=["forgetful lock: this server loses data"])
    setattr(bad, field, 1 if field == "stuck" else ["kept lock: this server doesn't"])
    for outcome, verdict in ((bad, False), (good, True)):
        assert (verdict, verdict) == (outcome.good, "BAD" not in outcome.summary())
