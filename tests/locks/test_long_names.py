"""Values in templates of `synchronized` that are too long or have control characters."""

from __future__ import annotations

import pytest

from django_redis_sync import LeaseLost, Lock, synchronized
from tests.behaviour.both import eventually
from tests.support.operators import as_json, locks

pytestmark = pytest.mark.usefixtures("raw")

LONG = "https://example.com/reports?" + "&".join(f"column={n}" for n in range(40))


@pytest.mark.parametrize("url", [LONG, "a\nb", "a\x00b", "é" * 150, "\ud800", "%" * 90, LONG * 90])
def test_any_value_makes_a_name_that_operators_find_by_the_value(url: str) -> None:
    found: list[str] = []

    @synchronized("fetch:{url}")
    def hold(url: str) -> None:
        eventually(lambda: as_json("status")["names"])
        (name,) = [one["name"] for one in as_json("status")["names"]]
        found.append(name)
        assert len(name.encode()) <= 200 and name.startswith("fetch:")
        assert locks("status", f"fetch:{url}").startswith(f"{name}: 1 of 1 in use")
        locks("clear", f"fetch:{url}", "--no-input")
        assert Lock(name).acquire(blocking=False), "clear did not find the lock by the value"

    with pytest.raises(LeaseLost):
        hold(url)
    assert found


def held(url: str) -> set[str]:
    """Return the names that exist while a call with `url` runs."""
    names: set[str] = set()

    @synchronized("fetch:{url}")
    def call(url: str) -> None:
        eventually(lambda: as_json("status")["names"])
        names.update(one["name"] for one in as_json("status")["names"] if one["in_use"])

    call(url)
    return names


def test_calls_with_equal_long_values_exclude_each_other_and_with_others_do_not() -> None:
    @synchronized("fetch:{url}", on_full="skip")
    def inner(url: str) -> bool:
        return True

    @synchronized("fetch:{url}")
    def outer(url: str, other: str) -> bool | None:
        return inner(other)

    assert outer(LONG, LONG) is None, "two calls with one URL ran at once"
    assert outer(LONG, LONG + "1") is True, "calls with two URLs excluded each other"
    assert outer("a\nb", "a\nb") is None and outer("a\nb", "ab") is True


def test_no_short_value_makes_the_name_of_a_long_value() -> None:
    (name,) = held(LONG)
    beginning, digest = name.removeprefix("fetch:").split("%-")
    assert LONG.startswith(beginning.replace("%3A", ":")) and len(digest) == 32
    assert {name} != held(name.removeprefix("fetch:"))


def test_name_of_a_long_value_does_not_depend_on_the_secret_key(settings) -> None:
    before = held(LONG)
    settings.SECRET_KEY = "another service has another one"
    assert before == held(LONG)


def test_name_given_to_a_lock_must_not_be_too_long() -> None:
    with pytest.raises(ValueError, match="200 bytes"):
        Lock(f"fetch:{LONG}")
