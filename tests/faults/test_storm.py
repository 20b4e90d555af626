"""A process goes on working after many exceptions of its signal handlers."""

from __future__ import annotations

import pytest

from tests.support import worker_processes


@pytest.mark.deep
@pytest.mark.promise(6)
@pytest.mark.timeout(300)
def test_process_goes_on_after_many_exceptions_of_signal_handlers(raw) -> None:
    """`python -m tests.support.storm 100000` raises more of them."""
    done = worker_processes.run("-m", "tests.support.storm", 2_000, timeout=280)
    assert done.stdout.startswith("[] ") and done.returncode == 0, done.stdout + done.stderr
