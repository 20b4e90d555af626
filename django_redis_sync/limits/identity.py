"""Find the key and the share of a request, such as its user or its address. Addresses and free-form
values are replaced by digests.

`key_of` and `share_of` are plans of calls (see `engine/calls.py`), because a callable of the
project that returns a key or a share may query the database.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from .. import conf
from ..engine.calls import Call, CallPlan, Either
from ..locks.arguments import text_of_identity, text_of_share
from ..protocol.keys import check_text

if TYPE_CHECKING:
    from .policy import Policy

_SALT = "django_redis_sync.limits.identity"
#: Max bytes of a primary key that is used unchanged. A longer one is replaced by its digest.
MAX_PLAIN = 100


def digest(kind: str, value: str, secret: Any = None) -> str:
    """Return the digest of a value, with `kind` and a hyphen before it. `kind`: "ip" for an
    address, "key" for a free-form value, "user" for a long primary key. `secret`: see
    `conf.digest`."""
    return f"{kind}-{conf.digest(_SALT + kind, value, secret)[:32]}"


def of_user(pk: Any) -> str:
    """Return the key of a user: the primary key. If the primary key is too long or has control
    characters, return its digest."""
    text = str(pk)
    try:
        return check_text("a primary key", text, MAX_PLAIN)
    except ValueError:
        return digest("user", text)


def of_value(value: Any) -> str:
    """Return the key for a value that a policy's callable returned. Raise TypeError unless the
    value has a type that a share may have."""
    return digest("key", text_of_identity("a policy's key must return", value))


def possible_keys(text: str) -> list[str]:
    """Return the keys that an operator may mean with `text`, the likeliest first. The text may be
    a key itself, a primary key, an address, or a free-form value."""
    plain, net = of_user(text), network(text, conf.current().requests["ipv6_prefix"])
    by_address = digest("ip", net)
    is_address = re.fullmatch(r"[0-9.]+\.[0-9.]+|[0-9a-fA-F]*:.*", text)
    others = [text, plain] if plain != text else [plain]
    rotated = [
        digest(*what, secret) for secret in conf.secrets() for what in (("ip", net), ("key", text))
    ]
    return [*([by_address] if is_address else []), *others, of_value(text), by_address, *rotated]


def address(request: HttpRequest, trusted_proxies: int) -> str:
    """Return the client's address, or "" if it is unknown. `trusted_proxies`: the number of proxies
    in front of the server. If it is 0, return REMOTE_ADDR. Otherwise return the address that the
    outermost proxy wrote to X-Forwarded-For, or REMOTE_ADDR if that is missing or invalid."""
    nearest = str(request.META.get("REMOTE_ADDR") or "")
    if trusted_proxies:
        # Each proxy appends one address at the right end. A client may have forged the other
        # addresses.
        passed = str(request.META.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        if len(passed) >= trusted_proxies:
            return _bare(passed[-trusted_proxies]) or nearest
    return nearest


#: Addresses of IPv4 clients behind a NAT64. The last 32 bits are the IPv4 address.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: IPv6 addresses for NAT64 with a locally chosen prefix. They contain an IPv4 address, but its
#: position is unknown. So each whole address counts as one client.
_OWN_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")


def network(text: str, ipv6_prefix: int = 64) -> str:
    """Return the part of an address that identifies a client. For IPv4, this is the whole address.
    For IPv6, it is the address of the network with a prefix of `ipv6_prefix` bits. Ports and
    brackets around the address don't matter. If `text` has no address, return it unchanged."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        bare = _bare(text)
        return network(bare, ipv6_prefix) if bare else text
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if found in _NAT64:
            return str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
        prefix = 128 if found in _OWN_NAT64 else ipv6_prefix
        return str(ipaddress.ip_network((found, prefix), strict=False).network_address)
    return str(found)


def _bare(text: str) -> str:
    """Return an address without the port or brackets that some servers and proxies write. Return ""
    if there is no valid address."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    # Last, try without a port. It may follow an IPv6 address that has no brackets.
    return next(filter(_is_address, (text, text.rpartition(":")[0])), "")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


# Keys and shares of requests


def key_of(policy: Policy, request: HttpRequest, seen: Any) -> CallPlan:
    """Return the key of a request for a keyed policy. If the policy's key is "user" and the user is
    anonymous, return the key of the client's address. `seen`: the view's request object."""
    found = yield from _value_of(policy.key, of_value, policy, request, seen)
    return _client(policy, request) if found is None else found


def share_of(policy: Policy, request: HttpRequest, seen: Any) -> CallPlan:
    """Return the share of a request. Return None, the common share, if the policy's share is "user"
    and the user is anonymous, or if the policy's callable returns None."""
    return (yield from _value_of(policy.share, text_of_share, policy, request, seen))


def _value_of(
    option: Any,
    checked: Callable[[Any], str | None],
    policy: Policy,
    request: HttpRequest,
    seen: Any,
) -> CallPlan:
    """Return the key or the share of a request. `option`: "user", "ip", or a callable of the
    project. `checked`: a function that makes the key or the share from what the callable returns.
    Return None if `checked` returns None, or if `option` is "user" and the user is anonymous."""
    if callable(option):
        return checked((yield Call(option, seen)))
    if option == "user":
        pk = yield Either(partial(_user, seen), partial(_auser, seen))
        return None if pk is None else of_user(pk)
    return _client(policy, request)


def _client(policy: Policy, request: HttpRequest) -> str:
    """Return the key of the client's address: the digest of an IPv4 address or an IPv6 network."""
    found = address(request, policy.trusted_proxies)
    return digest("ip", network(found, policy.ipv6_prefix))


def known_user(request: Any) -> Any:
    """Return the user that the view sees. Return None if there is none, or if it is not known
    without a query of the database."""
    known = vars(request)
    user = known.get("user")
    if not isinstance(user, LazyObject) or user._wrapped is not empty:
        return user
    if not _is_of_session(user):
        return None
    user = known.get("_cached_user")
    return known.get("_acached_user") if user is None else user


def pk_of(user: Any, missing: Any = None) -> Any:
    """Return the primary key of a user. Return None if the user is anonymous, and `missing` if it
    has no attribute `pk`."""
    if user is None or not getattr(user, "is_authenticated", True):
        return None
    return getattr(user, "pk", missing)


_MIDDLEWARE = "django.contrib.auth.middleware"


def _is_of_session(user: Any) -> bool:
    """Return True if Django's AuthenticationMiddleware made `user`."""
    made_by = vars(user).get("_setupfunc") if isinstance(user, LazyObject) else None
    return getattr(made_by, "__module__", "") == _MIDDLEWARE


def _user(request: Any) -> Any:
    """Return the primary key of the user that the view sees, or None if the user is anonymous.
    Raise ImproperlyConfigured if the request has no user, or if the user has no primary key."""
    try:
        user = request.user
    except AttributeError as error:
        raise ImproperlyConfigured(
            "A policy with key 'user' needs request.user: add AuthenticationMiddleware."
        ) from error
    return _checked_pk(user)


def _checked_pk(user: Any) -> Any:
    pk = pk_of(user, ...)
    if pk is ...:
        raise ImproperlyConfigured(
            f"A policy with key 'user' needs request.user.pk, but the {type(user).__name__} has no "
            "attribute 'pk': set key to a callable that returns what identifies the user."
        )
    return pk


async def _auser(request: Any) -> Any:
    # The view sees request.user, unless only request.auser was replaced. Don't call Django's own
    # auser(): it returns the user of the session, even if a middleware has set another user.
    known = vars(request)
    of_session, auser = _is_of_session(known.get("user")), known.get("auser")
    if of_session and auser is not None:
        made_by = getattr(auser, "func", auser)
        if getattr(made_by, "__module__", "") != _MIDDLEWARE:
            return _checked_pk(await auser())
    user = known_user(request)
    if user is not None:
        return _checked_pk(user)
    pk = await sync_to_async(_user)(request)
    if of_session and "_cached_user" in known:
        # Django stores the user for auser() separately. Spare the view a second query.
        known.setdefault("_acached_user", known["_cached_user"])
    return pk
