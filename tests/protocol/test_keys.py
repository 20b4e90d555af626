"""The key grammar: no two names share a key, and the keys of one name share a slot."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from django_redis_sync.protocol.keys import check_text, keys_of, quote, split, touched, unquote
from tests.support.packed import all_keys

# Texts that could break quoting and parsing; random texts seldom contain them.
AWKWARD = st.sampled_from([*"{}@%:*[]? 457BD/é", "%7B", "%40", "%25", "@@", "}:{", "wake:"])
pieces = st.one_of(AWKWARD, st.characters(exclude_categories=("C", "Z")))
names = st.lists(pieces, min_size=1, max_size=8).map("".join).filter(lambda t: t.isprintable())
children = st.tuples(names, st.none() | names)
prefixes = st.one_of(st.sampled_from(["sync", "a:b", "{a}", "{", "}", "a}{b", "%7B", "@"]), names)


@given(st.lists(st.tuples(prefixes, children), min_size=2, max_size=2, unique=True))
def test_different_names_have_no_redis_key_in_common(
    pair: list[tuple[str, tuple[str, str | None]]],
) -> None:
    one, other = (keys_of(prefix, *child) for prefix, child in pair)
    assert set() == {*all_keys(one, "0" * 32)} & {*all_keys(other, "0" * 32)}


@given(children, prefixes, st.text("0123456789abcdef", min_size=1, max_size=32))
def test_all_redis_keys_of_a_name_are_in_the_same_cluster_slot(
    child: tuple[str, str | None], prefix: str, token: str
) -> None:
    keys = keys_of(prefix, *child)
    found = all_keys(keys, token)
    # The slot depends only on the name, not on the prefix.
    assert {key_slot(keys.quoted.encode())} == {key_slot(key.encode()) for key in found}
    assert len(found) == len(set(found))


@given(children)
def test_name_and_key_are_unchanged_after_they_were_quoted_and_split(
    child: tuple[str, str | None],
) -> None:
    quoted = keys_of("sync", *child).quoted
    assert child == split(quoted)
    assert child[0] == unquote(quote(child[0]))
    assert not set("{}") & set(quoted) and quoted.count("@") == (child[1] is not None)


def test_keys_have_the_documented_format() -> None:
    keys, parts = keys_of("sync", "exports"), "leases queue parked waiters info wake: stats"
    assert ("exports", "exports", "sync") == (keys.display, keys.quoted, keys.prefix)
    expected = tuple(f"sync:{{exports}}:{part}" for part in parts.split(" "))
    assert expected == touched(keys.declared) == tuple(keys[2:9])
    assert ("p:marks",) == touched(("p:marks",))
    assert ("a@b", "a@b") == ((child := keys_of("s", "a", "b")).quoted, child.display)
    assert ("a%40b", "a@b") == ((plain := keys_of("s", "a@b")).quoted, plain.display)


def test_braces_in_a_prefix_do_not_change_the_cluster_slot() -> None:
    assert "%7Bblog%7D:sync:{exports}:leases" == keys_of("{blog}:sync", "exports").leases


DIRECTION_MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = ["\0", "\n", "\r", "\t", "\x1b[31m", "\x9b", "\x7f", "\ud800", "\u2028", "\u2029"]


@pytest.mark.promise(28, 29)
@pytest.mark.parametrize(
    "name", ["", "a" * 201, "é" * 100 + "a", *(f"a{c}b" for c in [*CONTROLS, *DIRECTION_MARKS])]
)
def test_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="a name must not") as caught:
        keys_of("sync", name)
    assert ValueError is caught.type
    assert str(caught.value).isprintable(), "the message is not safe to print on a terminal"
    assert name[:1] != "a" or len(name) > 99 or f"U+{ord(name[1]):04X}" in str(caught.value)
    with pytest.raises(ValueError, match="a key must not"):
        keys_of("sync", "name", name)


@pytest.mark.promise(29)
@pytest.mark.parametrize("name", [None, b"bytes", 1, 1.5, True, ["a"], 1j], ids=repr)
def test_name_that_is_not_a_str_is_rejected(name: object) -> None:
    with pytest.raises(TypeError):
        keys_of("sync", name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a name must be a str"):
        check_text("a name", name)


@given(names)
@example("naïve 锁🔒")
@example("a" * 200)
@example("é" * 100)
def test_name_with_special_characters_is_accepted(name: str) -> None:
    assert name == keys_of("sync", name).display
