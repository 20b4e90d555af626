"""`manage.py locks clear`, `pause`, `resume`, and `resize`: which names and holders they mean."""

import math
from io import StringIO

import pytest
import redis
from django.conf import settings

from django_redis_sync import Lock, Semaphore
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import act, as_json, failed, locks, status_of

pytestmark = pytest.mark.usefixtures("fresh_keeper")


def test_clear_shows_the_holders_and_asks_for_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lock("a", timeout=math.inf, label="stuck.job").acquire()
    monkeypatch.setattr("sys.stdin", StringIO("n\n\nyes please\n"))
    for _ in range(4):  # in the last pass, there is no more input
        assert (1, "Nothing was cleared.") == failed("clear", "a")
    assert locks("clear", "a", "--dry-run").endswith("Dry run: nothing was cleared.\n")
    assert lease.owned()
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    output = locks("clear", "a")
    assert "permanent" in output and "stuck.job" in output
    assert lease.token[:8] in output and lease.token not in output
    assert output.endswith("\nClear this one? [y/N] Cleared 1.\n")
    assert locks("clear", "a") == "There are no holders.\n"


@pytest.mark.promise(26)
def test_clear_releases_only_holders_that_were_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, newcomers = Lock("a").acquire(), []

    def replace_the_holder() -> str:
        shown.release()
        newcomers.append(Lock("a").acquire())
        return "y"

    monkeypatch.setattr("builtins.input", replace_the_holder)
    assert locks("clear", "a").endswith("Cleared 0. 1 had ended by itself.\n")
    assert newcomers[0].owned()
    assert "No operator has acted on this name.\n" == locks("log", "a")
    newcomers[0].release()


def test_clear_includes_holders_beyond_the_rows_and_records_20_of_them() -> None:
    leases = [Semaphore("s", 300).acquire(blocking=False) for _ in range(201)]
    assert 200 == len(status_of("s").holders)
    assert locks("clear", "s", "--noinput").endswith("Cleared 201.\n")
    (one,) = as_json("log")
    assert (20, 201) == (len(one["ids"]), one["amount"])
    assert {*one["ids"]} < {lease.token[:8] for lease in leases}
    assert f"cleared 201: {', '.join(one['ids'])}, …" in locks("log")


@pytest.mark.parametrize("id", ["", "0", "zzzzzzzz"])
def test_clear_with_an_unknown_holder_id_fails(id: str) -> None:
    with Lock("a"):
        error = "No holder or waiter has that id: nothing was cleared."
        assert (1, error) == failed("clear", "a", "--holder", id, "--no-input")


def test_clear_rejects_an_ambiguous_holder_id(raw: redis.Redis) -> None:
    leases, info = (f"{settings.PREFIX}:{{s}}:{part}" for part in ("leases", "info"))
    for token in ("aaaaaaaa1" + "0" * 23, "aaaaaaaa2" + "0" * 23):
        raw.zadd(leases, {token: "inf"})
        raw.hset(info, token, f"h {10**15} inf 1 2 - {{}}")
    _, error = failed("clear", "s", "--holder", "aaaaaaaa", "--no-input")
    assert error.endswith("Give more characters: aaaaaaaa1000, aaaaaaaa2000")
    assert "Cleared 1." in locks("clear", "s", "--holder", "aaaaaaaa2", "--no-input")
    assert ["aaaaaaaa1"] == [holder.token[:9] for holder in status_of("s").holders]


def test_clear_treats_a_name_as_a_glob_only_with_pattern() -> None:
    leases = [Lock(name).acquire() for name in ("x1", "x2", "x[1]")]
    leases += [Semaphore("api", 2, key=key).acquire() for key in ("1", "2", "3", "4")]
    eventually(lambda: listed("x[1]", "x1", "x2", *(f"api@{n}" for n in "1234")))
    for glob in ("*", "x?"):
        code, error = failed("clear", glob, "--no-input")
        assert (3, True) == (code, error.endswith("To use it as a glob, add --pattern."))
    for words, text, owned in (
        (("[12]", "--pattern"), "No known name matches.\n", "x1 x2 x[1] 1 2 3 4"),
        (("x[1]",), "Cleared 1.\n", "x1 x2 1 2 3 4"),
        (("x[12]", "--pattern"), "Cleared 2.\n", "1 2 3 4"),
        (("api", "--key", "2"), "Cleared 1.\n", "1 3 4"),
        (("api@[13]", "--pattern"), "Cleared 2.\n", "4"),
        (("api",), "Cleared 1.\n", ""),
    ):
        assert locks("clear", *words, "--no-input").endswith(text)
        assert owned.split() == [one.name.removeprefix("api@") for one in leases if one.owned()]


UNKNOWN = ["clear exprots", "resume exprots", "resize exprots --reset", "pause exprots"]
UNKNOWN += ["resize exprots 3", "history exprots"]


@pytest.mark.parametrize("words", UNKNOWN)
def test_action_on_an_unknown_name_suggests_known_names(words: str, raw: redis.Redis) -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        code, error = failed(*words.split())
    assert (3, True) == (code, error.endswith(" Did you mean exports?"))
    assert [] == raw.keys("*{exprots}*")


def test_pause_and_resize_print_what_they_did() -> None:
    assert "Paused coming until resume.\n" == act("pause", "coming")
    assert "Resumed coming.\n" == locks("resume", "coming")
    assert "Resized coming. The limit is 3.\n" == act("resize", "coming", "3")
    reset = "Reset coming: the callers' limit applies again.\n"
    assert reset == locks("resize", "coming", "--reset")
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        assert locks("pause", "api", "--for", "10m").startswith("Paused api (2 keys) until ")
        assert "Resumed api@1.\n" == locks("resume", "api", "--key", "1")
