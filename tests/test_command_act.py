"""`manage.py locks clear`, `pause`, `resume` and `resize`."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError

from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators.facts import Status
from django_redis_sync.operators.names import family, names_in_use
from django_redis_sync.operators.status import MAX_ROWS, status_of, statuses
from tests.behaviour.both import eventually
from tests.support.commands import locks
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")


@pytest.fixture
def type_answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Return a function that sets what the operator types. None: the input is at its end."""

    def set_answer(text: str | None) -> None:
        def ask() -> str:
            if text is None:
                raise EOFError
            return text

        monkeypatch.setattr("builtins.input", ask)

    set_answer(None)
    return set_answer


def held(name: str, *, key: str | None = None) -> int:
    return status_of(name, key).holding


def test_clear_shows_the_holders_and_asks_for_confirmation(type_answer: Any) -> None:
    lease = Lock("a", timeout=math.inf, label="stuck.job").acquire()
    for typed in ("n", "", "yes please", None):
        type_answer(typed)
        with pytest.raises(CommandError, match="Nothing was cleared"):
            locks("clear", "a")
    assert lease.owned()
    type_answer("y")
    output = locks("clear", "a")
    assert "permanent" in output and "stuck.job" in output
    assert lease.token[:8] in output and lease.token not in output
    assert output.endswith("\nClear this one? [y/N] Cleared 1.\n")
    assert held("a") == 0


def test_clear_includes_holders_beyond_the_rows_of_a_status() -> None:
    semaphore = Semaphore("s", MAX_ROWS + 9)
    leases = [semaphore.acquire(blocking=False) for _ in range(MAX_ROWS + 1)]
    assert all(leases)
    assert locks("clear", "s", "--noinput").endswith(f"Cleared {MAX_ROWS + 1}.\n")
    assert held("s") == 0


def test_clear_releases_no_holder_in_a_dry_run() -> None:
    with Lock("a"):
        assert "Dry run: nothing was cleared." in locks("clear", "a", "--dry-run")
        assert held("a") == 1


def test_clear_with_a_holder_id_releases_only_that_holder() -> None:
    stuck, fine = (Semaphore("s", 2).acquire() for _ in range(2))
    locks("clear", "s", "--holder", stuck.token[:8], "--no-input")
    assert fine.owned() and not stuck.owned()
    fine.release()


@pytest.mark.parametrize("id", ["", "0", "zzzzzzzz"])
def test_clear_with_an_unknown_holder_id_fails(id: str) -> None:
    with Lock("a"), pytest.raises(CommandError, match="nothing was cleared"):
        locks("clear", "a", "--holder", id, "--no-input")


def test_clear_treats_a_name_as_a_glob_only_with_pattern() -> None:
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


def test_clear_releases_only_holders_that_were_shown(
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


def test_clear_includes_all_keys_unless_a_key_is_given() -> None:
    leases = [Semaphore("api", 2, key=key).acquire() for key in ("1", "2", "3")]
    eventually(lambda: listed("api@1", "api@2", "api@3"))
    locks("clear", "api", "--key", "2", "--no-input")
    assert [lease.owned() for lease in leases] == [True, False, True]
    locks("clear", "api", "--no-input")
    assert [lease.owned() for lease in leases] == [False] * 3


@pytest.mark.parametrize(
    "words", [["clear", "exprots"], ["resume", "exprots"], ["resize", "exprots", "--reset"]]
)
def test_clear_resume_and_reset_fail_for_an_unknown_name(words: list[str]) -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        with pytest.raises(CommandError, match=r"Unknown name: exprots.*exports\?") as caught:
            locks(*words)
    assert caught.value.returncode == 3
    assert names_in_use() == [("exports", None)]


def test_pause_with_create_accepts_an_unused_name() -> None:
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


def test_pause_includes_all_keys_of_a_policy() -> None:
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        assert locks("pause", "api").startswith("Paused api (2 keys) ")
        assert all(status.paused for status in statuses_of_family("api"))
        locks("resume", "api", "--key", "1")
        assert [s.paused for s in statuses_of_family("api") if s.key == "1"] == [False]
        locks("resume", "api")
        assert not any(status.paused for status in statuses_of_family("api"))


def statuses_of_family(name: str) -> list[Status]:
    return statuses(family(name))
