"""Families of names that are made from values, such as "webhook:{id}" and "invoice:*": see
`families_key` in engine/names.py. A list shows a family as one entry, as it shows a policy, and the
names of the family as it shows the keys of a policy."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.names import families_key, family_key, policy_key
from ..engine.quorum import Quorum
from ..protocol.keys import check_text, quote, unquote
from .reads import read, read_each, where

#: Max families that are read: those used last.
_MAX_FAMILIES = 1000

#: A name and None, or a policy and one of its keys.
Pair = tuple[str, str | None]


def families(*, using: str | None = None) -> list[str]:
    """Return the families, most recent first, at most _MAX_FAMILIES."""
    alias, prefix = where(using)
    if isinstance(alias, Quorum):
        return []
    found = read(alias, "ZREVRANGE", families_key(prefix), 0, _MAX_FAMILIES - 1)
    return [unquote(one) for one in found if can_be(unquote(one), None)]


def families_of(names: Sequence[str], *, using: str | None = None) -> dict[str, str]:
    """Return the family of each of `names` that is in one. This takes a command per family that has
    the beginning of a name, in one round trip."""
    alias, prefix = where(using)
    wanted: dict[str, list[str]] = {}
    for family in families(using=using) if names else ():
        # The text that all names of the family begin with.
        begin = family.partition("{")[0] if "{" in family else family[:-1]
        if some := [name for name in names if name.startswith(begin)]:
            wanted[family] = some
    commands = [
        ("ZMSCORE", family_key(prefix, family), *map(quote, some))
        for family, some in wanted.items()
    ]
    found = dict[str, str]()
    for (family, some), reply in zip(wanted.items(), read_each(alias, commands), strict=True):
        for name, score in zip(some, reply, strict=True):
            if score is not None:
                found.setdefault(name, family)
    return found


def pair_of(policy: str, key: str, is_family: bool) -> Pair:
    """Return the pair for a key of a policy or, with `is_family`, for a name of a family."""
    return (key, None) if is_family else (policy, key)


def registry_of(name: str, using: str | None) -> str:
    """Return the Redis key of the registry of a policy's keys, or of a family's names."""
    return registries_of([name], using)[name]


def registries_of(names: Sequence[str], using: str | None) -> dict[str, str]:
    """Return the Redis key of the registry of each policy's keys, or of each family's names."""
    prefix, made = where(using)[1], {*families(using=using)} if names else set[str]()
    return {
        name: family_key(prefix, name) if name in made else policy_key(prefix, name)
        for name in names
    }


def can_be(name: str, key: str | None) -> bool:
    """Return True if these texts can be a name and a key."""
    try:
        check_text("a name", name)
        return key is None or bool(check_text("a key", key))
    except (TypeError, ValueError):
        return False
