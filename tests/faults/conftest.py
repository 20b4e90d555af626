"""Fixtures of tests/behaviour for this folder: private servers that tests break, and figures for
RESULTS.md."""

import contextlib
import io

from django.core.management import call_command

from tests.behaviour.conftest import (  # noqa: F401 - fixtures
    alias,
    bench,
    figure,
    journal,
    new_bench,
    private,
)


def doctor(using: str) -> str:
    """Return what `manage.py locks doctor` prints. Raise AssertionError if the doctor finds no
    error."""
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("locks", "doctor", using=using, stdout=out)
        raise AssertionError(f"the doctor found no error: {out.getvalue()}")
    return out.getvalue()
