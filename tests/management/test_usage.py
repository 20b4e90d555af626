"""The help texts of `manage.py locks`, and the errors for wrong arguments."""

from __future__ import annotations

import contextlib
import re
import sys
from io import StringIO

import pytest
import redis
from django.core.management import call_command, execute_from_command_line
from django.core.management.base import BaseCommand, CommandParser

from django_redis_sync import Semaphore
from tests.support.commands import locks
from tests.support.operators import dead_cache, failed  # noqa: F401 - a fixture
from tests.support.snapshots import as_written

ACTIONS = ["status", "clear", "pause", "resume", "resize", "history", "log", "doctor", "run"]


def help_of(*words: str) -> str:
    out = StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "locks", *words, "--help"])
    assert not ended.value.code
    return out.getvalue()


def test_help_of_each_action_of_the_locks_command_equals_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test collapses spaces and line breaks, because they differ between versions of Python."""
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
        "status --watch -1", "log --format yaml", "log --top some", "resize e 0 --create",
        "resize e --rate 5 --create", "resize e --rate 0/m --create",
        "resize e many --create", "run e --limit 0", "run e --wait -1", "run e --wait nan",
        "run e --min-hold 1e9", "pause e --for 0 --create", "pause e --for ten --create",
        "pause e --for 1.5x --create", "pause e --for 999999999d --create",
        "history e --since -1h", "clear", "pause", "stat", "",
        # These commands combine valid arguments wrongly. Their exit code is 2.
        "status --key 7", "resize e --create", "resize e 3 --reset", "run e",
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected_before_anything_is_stored(
    words: str, raw: redis.Redis
) -> None:
    code, _ = failed(*words.split())
    if words in ("status --key 7", "resize e --create", "resize e 3 --reset", "run e"):
        assert 2 == code
    assert [] == raw.keys("*{e}*")


@pytest.mark.parametrize(
    "option", ["--settings tests.settings", "--pythonpath .", "-v 2", "--no-color", "--traceback"]
)
def test_django_options_can_come_before_or_after_the_action(
    option: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for words in (["status", *option.split()], [*option.split(), "status"]):
        with contextlib.redirect_stdout(out := StringIO()):
            call_command("locks", *words)
        assert "No lock or semaphore was used within the last day.\n" == out.getvalue()


@pytest.mark.parametrize("words", ["pause e", "resize e 3", "resume e", "resize e --reset"])
def test_error_for_an_unknown_name_says_how_to_act_on_it_all_the_same(words: str) -> None:
    code, error = failed(*words.split())
    assert 3 == code and error.startswith("Unknown name: e.")
    creates = words in ("pause e", "resize e 3")  # the others have nothing to undo
    assert creates == error.endswith("If the name is right, add --create.")


def test_keyword_arguments_of_call_command_may_be_texts(raw: redis.Redis) -> None:
    """Django parses them neither for this command nor for its own."""
    Semaphore("e", 3).acquire().release()
    assert "Resized e. The limit is 4." in locks("resize", "e", limit="4")
    assert "(for 10 min)" in locks("pause", "e", seconds="10m")
    assert "Last 60 min:" in locks("history", "e", since="1h")
    for words, wrong in (("resize", {"limit": "0"}), ("pause", {"seconds": "1w"})):
        code, error = failed(words, "e", **wrong)
        (option,) = wrong
        assert 2 == code and error.startswith(f"{option}: not a "), error


@pytest.mark.promise(29)
@pytest.mark.parametrize("action", ["pause", "clear", "status", "log"])
def test_empty_name_is_rejected_with_a_one_line_error(action: str) -> None:
    code, error = failed(action, "")
    assert (1, True, False) == (code, error.startswith("a name must not"), "\n" in error)


@pytest.mark.parametrize("action", ["pause", "clear", "status"])
@pytest.mark.parametrize("text", ["a\nb", "x" * 201])
def test_text_that_can_be_no_name_is_an_unknown_name(text: str, action: str) -> None:
    code, error = failed(action, text)
    assert error.startswith("Unknown name") and text not in error and "\n" not in error.strip(), (
        code,
        error,
    )


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("doctor", 2), ("status", 1), ("status a", 1), ("log", 1), ("history a", 1),
        ("clear a --no-input", 1), ("pause a", 1), ("pause a --create", 1), ("resume a", 1),
        ("resize a 3 --create", 1), ("resize a --reset", 1),
    ],
)  # fmt: skip
def test_command_fails_with_a_one_line_error_while_redis_is_down(words: str, code: int) -> None:
    found, error = failed(*words.split(), using="dead")
    assert (code, 1) == (found, len(error.splitlines()))
    assert "127.0.0.1:1" in error and "LOCATION in CACHES" in error and "secret" not in error


def test_the_command_works_if_a_package_replaces_create_parser_of_all_commands(
    monkeypatch: pytest.MonkeyPatch, raw: redis.Redis
) -> None:
    """django-configurations does so, with a function that takes no keyword arguments."""
    known = BaseCommand.create_parser

    def create_parser(self: BaseCommand, prog_name: str, subcommand: str) -> CommandParser:
        parser = known(self, prog_name, subcommand)
        parser.add_argument("--configuration")
        return parser

    monkeypatch.setattr(BaseCommand, "create_parser", create_parser)
    with Semaphore("exports", 3):
        assert "exports" in locks("status")
    found = help_of()
    assert "75 no permit was acquired" in found
    assert found.index("--configuration") < found.index("exit codes:\n  0  done")
