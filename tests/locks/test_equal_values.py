"""Equal values make one name and one share. Exceptions keep what they say."""

from __future__ import annotations

import copy
import enum
import pickle
import threading
from datetime import date, datetime, timedelta, timezone
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from django.db import models
from django.utils.functional import SimpleLazyObject

from django_redis_sync import LeaseLost, Lock, NotAcquired, Semaphore, Unavailable, synchronized
from django_redis_sync.limits.identity import of_value

pytestmark = pytest.mark.usefixtures("clean_redis")


class Kind(models.TextChoices):
    IMPORT = "import"


class Mixed(str, enum.Enum):
    IMPORT = "import"


class Level(enum.IntEnum):
    LOW = 7


class Plain(enum.Enum):
    RED = 1


class Loud(str):
    def __str__(self) -> str:
        return "loud"

    __format__ = None  # type: ignore[assignment]


class Colors(enum.Flag):
    RED = 1
    BLUE = 2


class Moment(datetime):
    """As the datetimes of some packages, whose text differs from that of an equal datetime."""

    def __str__(self) -> str:
        return f"{self.year}T{self.hour}"

    isoformat = __str__  # type: ignore[assignment]


class Day(date):
    def __str__(self) -> str:
        return "today"

    isoformat = __str__


class Identity(UUID):
    def __str__(self) -> str:
        return self.hex


ID = UUID(int=7)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
EQUAL: list[tuple[Any, str]] = [
    *((value, "import") for value in (Kind.IMPORT, Mixed.IMPORT, "import", Loud("import"))),
    *((value, "7") for value in (Level.LOW, 7, "7")),
    (Plain.RED, "RED"),
    (Colors.RED | Colors.BLUE, "RED|BLUE" if Colors(3).name else "3"),
    (Colors(0), "0"),
    *(
        (value, "2026-01-01 12:00:00+00:00")
        for value in (NOON, Moment(*NOON.timetuple()[:6], tzinfo=timezone.utc))
    ),
    *(
        (value, "2026-01-01 12:00:00")
        for value in (datetime(2026, 1, 1, 12), Moment(2026, 1, 1, 12))
    ),
    *((value, "2026-01-01") for value in (date(2026, 1, 1), Day(2026, 1, 1))),
    *((value, f"{ID}") for value in (ID, Identity(f"{ID}"))),
    (SimpleLazyObject(lambda: NOON), "2026-01-01 12:00:00+00:00"),
    (SimpleLazyObject(lambda: Moment(2026, 1, 1, 12)), "2026-01-01 12:00:00"),
    *(
        (SimpleLazyObject(lambda: Day(2026, 1, 1)), "2026-01-01"),
        (SimpleLazyObject(lambda: ID), f"{ID}"),
    ),
    *((SimpleLazyObject(lambda: "import"), "import"), (SimpleLazyObject(lambda: 7), "7")),
    *((SimpleLazyObject(lambda: Mixed.IMPORT), "import"), (SimpleLazyObject(lambda: True), "1")),
]


@pytest.mark.parametrize(("value", "text"), EQUAL)
def test_value_counts_by_its_own_value_in_names_and_shares(value: Any, text: str, view) -> None:
    @synchronized("batch:{value}", share="{value}", blocking=False)
    def called(value: Any) -> Any:
        return view("batch:" + text.replace(":", "%3A")).holding

    assert called(value) == 1
    if text == "1":  # a bool is no share, and no key of a request
        return
    assert Semaphore("x", 2, share=value).share == text
    assert of_value(value) == of_value(text)


@pytest.mark.parametrize("value", [value for value, text in EQUAL if text == "import"])
def test_name_and_key_that_are_given_directly_are_plain_texts(value: Any, view) -> None:
    for semaphore in (Semaphore(value, 2), Semaphore("x", 2, key=value)):
        with semaphore as lease:
            assert {type(semaphore.name), type(lease.name)} == {str}
            assert lease.name in ("import", "x@import")
            assert repr(semaphore) in ("Semaphore('import', 2)", "Semaphore('x', 2)")
    lock = Lock("x")
    lock.name = value
    with lock, pytest.raises(NotAcquired, match=r"^'import': "), Lock(value, blocking=False):
        pass


def test_value_is_formatted_as_its_own_value(view) -> None:
    @synchronized("batch:{value:03d}", blocking=False)
    def called(value: Any) -> Any:
        return view("batch:007").holding

    assert called(Level.LOW) == called(7) == 1

    @synchronized("batch:{value:>4}", blocking=False)
    def aligned(value: Any) -> Any:
        return view("batch:   0").holding

    assert aligned(Colors(0)) == 1, "flags without a name count by their value"


def test_bool_counts_as_an_int_and_a_time_counts_in_utc(view) -> None:
    @synchronized("at:{value}", blocking=False)
    def called(value: Any, name: str) -> Any:
        return view(name).holding

    assert called(True, "at:1") == 1
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    for value in (NOON, berlin):
        assert called(value, "at:2026-01-01 12%3A00%3A00+00%3A00") == 1


def test_empty_share_is_refused_and_none_is_the_common_share() -> None:
    @synchronized("x", share="{tenant}")
    def called(tenant: Any) -> bool:
        return True

    assert called(None)
    for wrong in (lambda: called(""), lambda: Semaphore("x", 2, share="")):
        with pytest.raises(ValueError, match="a share must not be empty"):
            wrong()


def test_release_of_a_shared_object_takes_the_callers_own_lease_first() -> None:
    semaphore = Semaphore("x", 2, thread_local=False)
    mine = semaphore.acquire()
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(semaphore.acquire()))
    thread.start()
    thread.join()
    assert mine is not None
    assert semaphore._mine() is mine
    semaphore.release()
    assert mine.ended and others[0].held
    semaphore.release()  # the caller has none: the newest of all
    assert others[0].ended
    with pytest.raises(NotAcquired):
        semaphore.release()


ERRORS = [
    (NotAcquired("no more", "full", "a"), ("no more", "full", "a")),
    (LeaseLost("no more", "a"), ("no more", None, "a")),
    (Unavailable("no more", maybe_executed=True), ("no more", None, None)),
]


@pytest.mark.parametrize(("error", "said"), ERRORS)
def test_exception_made_again_from_its_arguments_keeps_what_it_says(error: Any, said: Any) -> None:
    for again in (type(error)(*error.args), pickle.loads(pickle.dumps(error)), copy.copy(error)):
        got = str(again), getattr(again, "reason", None), getattr(again, "lock_name", None)
        assert said == got
        assert getattr(again, "maybe_executed", True) is True
        assert repr(again) == f"{type(error).__name__}('no more')"


@pytest.mark.parametrize("kind", [NotAcquired, LeaseLost, Unavailable])
def test_exception_can_be_raised_without_arguments(kind: Any) -> None:
    with pytest.raises(kind) as caught:
        raise kind
    assert str(caught.value) == ""
    with mock.patch.object(Lock, "acquire", side_effect=kind), pytest.raises(kind):
        Lock("x").acquire()
