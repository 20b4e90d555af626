"""The arguments of `manage.py locks`: help, and errors of wrong usage."""

from __future__ import annotations

import contextlib
import re
import sys
from io import StringIO

import pytest
import redis
from django.core.management import CommandError, call_command, execute_from_command_line

from tests.support.snapshots import as_written

ACTIONS = ["status", "clear", "pause", "resume", "resize", "history", "log", "doctor", "run"]


def help_of(*words: str) -> str:
    out = StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "locks", *words, "--help"])
    assert not ended.value.code
    return out.getvalue()


def test_help_matches_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has no line breaks of Python's, which differ between versions."""
    monkeypatch.setenv("COLUMNS", "200")
    lines = [" ".join(line.split()) for name in ACTIONS for line in help_of(name).splitlines()]
    general = help_of()
    assert {*ACTIONS} <= {*re.findall(r"^    (\w+)", general, re.MULTILINE)}
    lines += ["", *general[general.index("exit codes:") :].splitlines()]
    as_written("locks", lines)


@pytest.mark.promise(29)
@pytest.mark.parametrize(
    "words",
    [
        "status --sort age", "status --format yaml", "status --top 0", "status --watch soon",
        "status --watch -1", "status --key 7", "log --format yaml", "log --top some", "resize e",
        "resize e 0", "resize e many", "resize e 3 --reset", "run e --limit 0", "run e --wait -1",
        "run e --wait nan", "run e --min-hold 1e9", "run e", "pause e --for 0", "pause e --for ten",
        "history e --since -1h", "clear", "pause", "resume", "run", "stat", "",
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected_before_anything_is_stored(
    words: str, raw: redis.Redis
) -> None:
    with pytest.raises(CommandError):
        call_command("locks", *words.split(), stdout=StringIO())
    assert [] == raw.keys("*{e}*")


@pytest.mark.parametrize("words", ["resize e", "run e", "status --key 7", "resize e 3 --reset"])
def test_wrong_usage_exits_with_2(words: str) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("locks", *words.split(), stdout=StringIO())
    assert 2 == caught.value.returncode


@pytest.mark.parametrize(
    "option", ["--settings tests.settings", "--pythonpath .", "-v 2", "--no-color", "--traceback"]
)
def test_options_of_django_may_precede_or_follow_the_action(
    option: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for words in (["status", *option.split()], [*option.split(), "status"]):
        with contextlib.redirect_stdout(out := StringIO()):
            call_command("locks", *words)
        assert "No lock or semaphore was used within the last day.\n" == out.getvalue()


@pytest.mark.promise(29)
@pytest.mark.parametrize("action", ["pause", "clear", "status", "log"])
@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_invalid_name_is_rejected_with_one_line(name: str, action: str) -> None:
    with pytest.raises(CommandError, match="a name must not") as caught:
        call_command("locks", action, name, stdout=StringIO())
    assert "\n" not in str(caught.value)
