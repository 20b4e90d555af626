"""A short soak, and whether its own check of overlaps would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.servers import find_server

from .run import Outcome, overlaps


@pytest.mark.slow
@pytest.mark.skipif(find_server() is None, reason="needs servers of its own")
def test_a_short_soak_finds_nothing_wrong() -> None:
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-W", "error", "-m", "tests.soak", "--minutes", "0.2", "--seed", "7"]
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO", "SYNC_TEST"))}
    done = subprocess.run(
        words, cwd=root, env=keep, capture_output=True, text=True, timeout=110, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "verdict" in done.stdout and "good" in done.stdout


def test_two_that_believed_at_once_are_found(tmp_path: Path) -> None:
    path = tmp_path / "believers"
    one_after_the_other = [
        "kept lock 1 10.0 11.0",
        "kept lock 2 11.0 12.0",
        "kept hard 3 10.5 10.6",
    ]
    path.write_text("\n".join(one_after_the_other) + "\n")
    assert (3, []) == overlaps(str(path))
    # The younger fence began before the older one stopped believing; twice taken is once held.
    path.write_text("kept lock 2 10.9 12.0\nkept lock 1 10.0 11.0\nkept lock 2 11.5 12.0\n")
    said = "kept lock: 2 began at 10.900000; 1 was believed for 0.100000 s more"
    assert (3, [said]) == overlaps(str(path))


def test_an_outcome_is_bad_when_anything_went_wrong() -> None:
    assert Outcome(1).good
    for wrong in (
        {"violations": ["limit"]},
        {"unexpected": ["ValueError"]},
        {"residue": ["a key"]},
        {"stuck": 1},
    ):
        outcome = Outcome(1, **wrong)  # type: ignore[arg-type]
        assert not outcome.good and "BAD" in outcome.summary()
    lost = Outcome(1)
    lost.overlaps["forgetful"] += 1  # its data was lost, and grants with it
    assert lost.good
    lost.overlaps["kept"] += 1
    assert not lost.good
