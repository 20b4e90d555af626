"""`manage.py locks clear`, `pause`, `resume` and `resize`."""

import math
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators.facts import Status
from django_redis_sync.operators.names import family, names_in_use
from django_redis_sync.operators.status import MAX_ROWS, status_of, statuses
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """What the operator types; None: nobody is there."""

    def answers(text: str | None) -> None:
        def ask() -> str:
            if text is None:
                raise EOFError
            return text

        monkeypatch.setattr("builtins.input", ask)

    answers(None)
    return answers


def locks(*words: str, **options: Any) -> str:
    out = StringIO()
    call_command("locks", *words, stdout=out, **options)
    return out.getvalue()


def held(name: str, *, key: str | None = None) -> int:
    return status_of(name, key).holding


def test_clear_shows_whom_and_asks_first(answer: Any) -> None:
    lease = Lock("a", timeout=math.inf, label="stuck.job").acquire()
    for typed in ("n", "", "yes please", None):
        answer(typed)
        with pytest.raises(CommandError, match="Nothing was cleared"):
            locks("clear", "a")
    assert lease.owned()
    answer("y")
    said = locks("clear", "a")
    assert "permanent" in said and "stuck.job" in said
    assert lease.token[:8] in said and lease.token not in said
    assert said.endswith("\nClear this one? [y/N] Cleared 1.\n")
    assert held("a") == 0


def test_all_that_hold_are_cleared_however_many_rows_a_status_has() -> None:
    semaphore = Semaphore("s", MAX_ROWS + 9)
    leases = [semaphore.acquire(blocking=False) for _ in range(MAX_ROWS + 1)]
    assert all(leases)
    assert locks("clear", "s", "--noinput").endswith(f"Cleared {MAX_ROWS + 1}.\n")
    assert held("s") == 0


def test_dry_run_only_shows() -> None:
    with Lock("a"):
        assert "Dry run: nothing was cleared." in locks("clear", "a", "--dry-run")
        assert held("a") == 1


def test_clear_takes_one_holder_by_its_id() -> None:
    stuck, fine = (Semaphore("s", 2).acquire() for _ in range(2))
    locks("clear", "s", "--holder", stuck.token[:8], "--no-input")
    assert fine.owned() and not stuck.owned()
    fine.release()


@pytest.mark.parametrize("id", ["", "0", "zzzzzzzz"])
def test_an_unknown_id_clears_nobody(id: str) -> None:
    with Lock("a"), pytest.raises(CommandError, match="nothing was cleared"):
        locks("clear", "a", "--holder", id, "--no-input")


def test_a_name_is_literal_unless_it_is_said_to_be_a_pattern() -> None:
    with Lock("x[1]"):
        one, other = Lock("x1").acquire(), Lock("x2").acquire()
        eventually(lambda: listed("x[1]", "x1", "x2"))
        for glob in ("*", "x?"):
            with pytest.raises(CommandError, match="To use it as a glob, add --pattern") as caught:
                locks("clear", glob, "--no-input")
            assert caught.value.returncode == 3
        assert locks("clear", "[12]", "--pattern", "--no-input") == "No known name matches.\n"
        assert one.owned() and other.owned() and held("x[1]") == 1
        locks("clear", "x[12]", "--pattern", "--no-input")
        assert not one.owned() and not other.owned()
        assert held("x[1]") == 1


def test_clear_acts_on_the_holder_shown_even_if_a_newcomer_took_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, newcomers = Lock("a").acquire(), []

    def ask() -> str:
        shown.release()
        newcomers.append(Lock("a").acquire())
        return "y"

    monkeypatch.setattr("builtins.input", ask)
    assert locks("clear", "a").endswith("Cleared 0. 1 had ended by itself.\n")
    assert newcomers[0].owned()
    newcomers[0].release()


def test_clear_speaks_of_all_keys_and_of_one_with_key() -> None:
    leases = [Semaphore("api", 2, key=key).acquire() for key in ("1", "2", "3")]
    eventually(lambda: listed("api@1", "api@2", "api@3"))
    locks("clear", "api", "--key", "2", "--no-input")
    assert [lease.owned() for lease in leases] == [True, False, True]
    locks("clear", "api", "--no-input")
    assert [lease.owned() for lease in leases] == [False] * 3


@pytest.mark.parametrize(
    "words", [["clear", "exprots"], ["resume", "exprots"], ["resize", "exprots", "--reset"]]
)
def test_what_is_undone_or_cleared_of_an_unknown_name_is_an_error(words: list[str]) -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        with pytest.raises(CommandError, match=r"Unknown name: exprots.*exports\?") as caught:
            locks(*words)
    assert caught.value.returncode == 3
    assert names_in_use() == [("exports", None)]


def test_a_name_can_be_paused_before_it_is_used() -> None:
    assert locks("pause", "coming", "--create") == "Paused coming until resume.\n"
    assert locks("clear", "coming") == "There are no holders.\n"
    assert locks("resume", "coming") == "Resumed coming.\n"


def test_pause_resume_and_resize_take_effect_at_once() -> None:
    def tries() -> bool:
        lease = Semaphore("e", 2).acquire(blocking=False)
        return lease is not None and lease.release() is None

    assert tries()
    assert locks("pause", "e") == "Paused e until resume.\n"
    assert not tries()
    assert locks("resume", "e") == "Resumed e.\n"
    assert tries()
    with Semaphore("e", 2), Semaphore("e", 2):
        assert locks("resize", "e", "3") == "Resized e. The limit is 3.\n"
        assert tries()
        assert locks("resize", "e", "--reset") == "Reset e: the callers' limit applies again.\n"
        assert not tries()


def test_pause_speaks_of_all_keys_of_a_policy() -> None:
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        assert locks("pause", "api").startswith("Paused api (2 keys) ")
        assert all(status.paused for status in every("api"))
        locks("resume", "api", "--key", "1")
        assert [s.paused for s in every("api") if s.key == "1"] == [False]
        locks("resume", "api")
        assert not any(status.paused for status in every("api"))


def every(name: str) -> list[Status]:
    return statuses(family(name))
