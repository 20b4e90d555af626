"""The key grammar: no two names share a key, and the keys of one name share a slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from django_redis_sync.protocol.keys import (
    Keys,
    check_text,
    keys_of,
    quote,
    split,
    touched,
    unquote,
)
from tests.support.packed import all_keys

# Texts that could break quoting and parsing; random texts seldom contain them.
AWKWARD = st.sampled_from([*"{}@%:*[]? 457BD/é", "%7B", "%40", "%25", "@@", "}:{", "wake:"])


def acceptable(text: str) -> bool:
    try:
        check_text("a name", text)
    except ValueError:
        return False
    return True


pieces = st.one_of(AWKWARD, st.characters(exclude_categories=("C", "Z")))
names = st.lists(pieces, min_size=1, max_size=8).map("".join).filter(acceptable)
children = st.tuples(names, st.none() | names)
prefixes = st.one_of(st.sampled_from(["sync", "a:b", "{a}", "{", "}", "a}{b", "%7B", "@"]), names)


def every(keys: Keys) -> set[str]:
    return set(all_keys(keys, "0" * 32))


@given(st.lists(children, min_size=2, max_size=2, unique=True), prefixes)
def test_two_names_share_no_key(pair: list[tuple[str, str | None]], prefix: str) -> None:
    one, other = (keys_of(prefix, *child) for child in pair)

    assert set() == every(one) & every(other)
    assert one.quoted != other.quoted


@given(st.lists(prefixes, min_size=2, max_size=2, unique=True), children)
def test_two_prefixes_share_no_key(pair: list[str], child: tuple[str, str | None]) -> None:
    one, other = (keys_of(prefix, *child) for prefix in pair)

    assert set() == every(one) & every(other)


@given(children, prefixes, st.text("0123456789abcdef", min_size=1, max_size=32))
def test_keys_of_a_name_are_in_one_slot(
    child: tuple[str, str | None], prefix: str, token: str
) -> None:
    keys = keys_of(prefix, *child)

    found = all_keys(keys, token)
    # The slot depends only on the name, not on the prefix.
    assert {key_slot(keys.quoted.encode())} == {key_slot(key.encode()) for key in found}
    assert len(found) == len(set(found))


@given(children)
def test_split_returns_the_name_and_key_of_quoted_text(child: tuple[str, str | None]) -> None:
    assert child == split(keys_of("sync", *child).quoted)


@given(names)
def test_unquote_reverses_quote(name: str) -> None:
    assert name == unquote(quote(name))
    assert not set("{}@") & set(quote(name))


def test_keys_have_the_documented_format() -> None:
    keys = keys_of("sync", "exports")

    assert ("exports", "exports") == (keys.display, keys.quoted)
    assert "sync:{exports}:leases" == keys.leases
    assert "sync:{exports}:queue" == keys.queue
    assert "sync:{exports}:waiters" == keys.waiters
    assert "sync:{exports}:info" == keys.info
    assert "sync:{exports}:wake:abc" == keys.wake + "abc"


def test_name_with_an_at_sign_differs_from_a_key_of_a_policy() -> None:
    child, plain = keys_of("sync", "a", "b"), keys_of("sync", "a@b")

    assert ("a@b", "a%40b") == (child.quoted, plain.quoted)
    assert ("a@b", "a@b") == (child.display, plain.display)
    assert (("a", "b"), ("a@b", None)) == (split("a@b"), split("a%40b"))


def test_braces_in_a_prefix_do_not_move_the_slot() -> None:
    assert "%7Bblog%7D:sync:{exports}:leases" == keys_of("{blog}:sync", "exports").leases


# Invalid names

REJECTED = {
    "empty": "",
    "NUL": "a\0b",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "ANSI codes": "\x1b[31mred\x1b[0m",
    "a C1 control": "a\x9b31m",
    "DEL": "a\x7f",
    "a lone surrogate": "a\ud800",
    "a line separator": "a\u2028b",
    "a paragraph separator": "a\u2029b",
    "a reversed text direction": "a\u202egpj.exe",
    "201 bytes": "a" * 201,
    "201 bytes in UTF-8": "é" * 100 + "a",
}
DIRECTION_MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_marks_that_change_the_text_direction_are_rejected() -> None:
    for char in DIRECTION_MARKS:
        with pytest.raises(ValueError, match=f"U\\+{ord(char):04X}"):
            check_text("a name", f"a{char}b")


@pytest.mark.parametrize("name", REJECTED.values(), ids=REJECTED)
def test_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="a name must not") as caught:
        keys_of("sync", name)
    assert ValueError is caught.type
    # The message is safe to print on a terminal.
    assert str(caught.value).isprintable()
    with pytest.raises(ValueError, match="a key must not"):
        keys_of("sync", "name", name)


@pytest.mark.parametrize("name", [None, b"bytes", 1, 1.5, True, ["a"], 1j], ids=repr)
def test_name_that_is_not_a_str_is_rejected(name: object) -> None:
    with pytest.raises(TypeError):
        keys_of("sync", name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a name must be a str"):
        check_text("a name", name)


ACCEPTED = ["a b", "{", "}", "a:b", "naïve", "锁", "🔒", "x[1]", "*", "%", "a@b", "a" * 200]


@pytest.mark.parametrize("name", ACCEPTED)
def test_name_with_special_characters_is_accepted(name: str) -> None:
    keys = keys_of("sync", name)

    assert name == keys.display
    assert (name, None) == split(keys.quoted)


def test_touched_returns_all_keys_of_a_name() -> None:
    keys = keys_of("p", "x")
    every = (keys.leases, keys.queue, keys.parked, keys.waiters, keys.info, keys.wake, keys.stats)
    assert every == touched(keys.declared)
    assert ("p:marks",) == touched(("p:marks",))
