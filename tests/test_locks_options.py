"""Objects that are made anew at each use: what is remembered of their options, and what is not."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_sync import Lock, Semaphore, synchronized
from django_redis_sync.locks import terms

pytestmark = pytest.mark.usefixtures("clean_redis")


def asked(made: Semaphore, **options: Any) -> Any:
    """The terms and the Ask of an acquire."""
    return made._terms_and_ask(None, options.get("blocking_timeout"), options.get("permits", 1))


def changed(**options: Any) -> Any:
    return override_settings(REDIS_SYNC={**settings.REDIS_SYNC, **options})


def test_objects_of_equal_options_share_what_was_made_of_them() -> None:
    one, other = Lock("one", timeout=7), Lock("other", timeout=7)
    asked(one)
    asked(other)
    assert one._given is other._given
    assert 1 == len(one._given.patterns)


def test_each_asks_for_its_own_name_and_key() -> None:
    made = [Semaphore(name, 2, key=key) for name in "ab" for key in (None, "k")]
    assert [asked(one)[0].keys.display for one in made] == ["a", "a@k", "b", "b@k"]
    assert [asked(one)[1].keys.display for one in made] == ["a", "a@k", "b", "b@k"]


def test_each_is_told_of_its_own_loss_and_labelled_by_its_own_label() -> None:
    told: list[Any] = []
    one, other = Lock("a", on_lost=told.append, label="mine"), Lock("a")
    assert (asked(one)[0].on_lost, asked(other)[0].on_lost) == (one.on_lost, None)
    assert ["mine" in asked(made)[1].label for made in (one, other)] == [True, False]


def test_what_an_object_was_given_to_call_is_freed_with_it() -> None:
    class Told:
        def __call__(self, lease: Any) -> None:
            pass

    told = Told()
    gone, lock = weakref.ref(told), Lock("a", on_lost=told)
    asked(lock)
    del told, lock
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"limit": 1}, {"limit": True}),
        ({"limit": 1}, {"limit": 1.0}),
        ({"limit": 1, "timeout": 1}, {"limit": 1, "timeout": True}),
        ({"limit": 1, "release_on_commit": True}, {"limit": 1, "release_on_commit": 1}),
    ],
)
def test_an_equal_value_of_a_wrong_type_is_still_refused(right: Any, wrong: Any) -> None:
    Semaphore("a", **right)
    with pytest.raises(TypeError):
        Semaphore("a", **wrong)


def test_a_value_that_can_be_no_key_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not list"):
        Lock("a", timeout=[1])  # type: ignore[arg-type]


def test_settings_are_heard_by_the_next_object_and_by_those_that_are_there() -> None:
    kept = Lock("a")
    assert asked(kept)[0].timeout == asked(Lock("a"))[0].timeout == 30
    with changed(TIMEOUT=7):
        assert (asked(kept)[0].timeout, asked(Lock("a"))[0].timeout) == (7, 7)
    assert (asked(kept)[0].timeout, asked(Lock("a"))[0].timeout) == (30, 30)


def test_a_prefix_and_a_cache_are_heard_too() -> None:
    before = asked(Lock("a"))[0].keys.leases
    with changed(KEY_PREFIX="elsewhere"):
        assert asked(Lock("a"))[0].keys.leases == "elsewhere:{a}:leases" != before
    assert asked(Lock("a"))[0].keys.leases == before


def test_a_name_in_the_settings_has_its_entry_and_others_have_not() -> None:
    with changed(SEMAPHORES={"big": {"limit": 9, "timeout": 5}, "small": {"limit": 2}}):
        made = [asked(Semaphore(name)) for name in ("big", "small", "big")]
        assert [ask.limit for _, ask in made] == [9, 2, 9]
        assert [terms.timeout for terms, _ in made] == [5, 30, 5]
        assert asked(Semaphore("small", 3))[1].limit == asked(Semaphore("other", 3))[1].limit == 3


def test_faces_and_templates_of_equal_options_ask_each_for_its_own() -> None:
    class Patient(Lock):
        _max_waiters = 3

    plain, patient = asked(Lock("a"))[1], asked(Patient("a"))[1]
    assert (plain.max_waiters, patient.max_waiters) == (10**9, 3)
    one, other = Lock("a"), Lock("b")
    other.template = "{name}"
    assert [asked(made)[0].template for made in (one, other, one)] == ["", "{name}", ""]


def test_an_object_that_was_changed_changes_no_other() -> None:
    class Hard(Lock):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__(name)
            self.timeout = seconds

    made = [Hard("a", 5), Hard("b", 6), Lock("c")]
    assert [asked(one)[0].timeout for one in made] == [5, 6, 30]


@pytest.mark.parametrize("said", [{"blocking_timeout": 0.5}, {"permits": 2}])
def test_what_one_call_says_is_not_the_next_ones(said: Any) -> None:
    usual = asked(Semaphore("a", 2))[1]
    asked(Semaphore("a", 2), **said)
    again = asked(Semaphore("a", 2))[1]
    assert (again.permits, again.give_up_at) == (usual.permits, usual.give_up_at)


def test_options_that_never_come_again_are_not_kept_for_ever() -> None:
    for number in range(2_000):
        asked(Lock("a", timeout=1 + number / 1000))
    found = terms._remembered.cache_info()
    assert found.currsize <= found.maxsize == 512
    given = Lock("a")._given
    for number in range(2_000):
        made = Lock("a")
        made.template = f"{{n{number}}}"
        asked(made)
    assert len(given.patterns) <= terms._MOST_PATTERNS


def test_names_that_never_come_again_leave_nothing() -> None:
    asked(Lock("a"))
    before = len(Lock("a")._given.patterns)
    for number in range(1_000):
        asked(Lock(f"order:{number}"))
    assert before == len(Lock("a")._given.patterns)


def test_labels_that_never_come_again_are_not_kept_for_ever(monkeypatch: Any) -> None:
    lock, labels = Lock("a"), iter(range(1_000))
    monkeypatch.setattr(terms.labels, "write", lambda label: f"thread {next(labels)}")
    assert [f"thread {n}" for n in range(1_000)] == [asked(lock)[1].label for _ in range(1_000)]
    assert len(lock._usual) <= terms._MOST_USUAL


def test_a_locked_function_of_many_names_asks_for_each() -> None:
    seen = []

    @synchronized("invoice:{pk}")
    def pay(pk: int) -> None:
        seen.extend(name for name in (f"invoice:{n}" for n in range(3)) if Lock(name).locked())

    for pk in range(3):
        pay(pk)
    assert seen == [f"invoice:{n}" for n in range(3)]


def test_what_is_asked_on_a_loop_names_the_channel_of_that_loop() -> None:
    semaphore = Semaphore("a", 2)
    _, ask = asked(semaphore)
    on_one, again = (semaphore._waiting_on("one", ask) for _ in range(2))
    assert on_one is again
    assert [semaphore._waiting_on(where, ask).channel for where in ("one", "two", "one")] == [
        "one",
        "two",
        "one",
    ]
    _, hurried = asked(semaphore, blocking_timeout=3)
    assert semaphore._waiting_on("one", hurried).give_up_at == hurried.give_up_at < 1e300
    assert asked(semaphore)[1].channel == "-"


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_what_a_process_holds_is_not_sent_to_another(send: Any, used: bool) -> None:
    lock = Lock("a")
    if used:
        with lock:
            pass
    with pytest.raises(TypeError, match="pickle"):
        send(lock)
