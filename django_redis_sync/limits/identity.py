"""Whom a request belongs to: the key of its semaphore. Addresses and free-form keys digested."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from ..protocol.keys import check_text

_SALT = "django_redis_sync.limits.identity"
#: Bytes of a primary key that stands in a key as it is.
MOST_PLAIN = 100


def digest(kind: str, value: str) -> str:
    """What stands in a key for an address (`kind` ip) or a free-form value (key)."""
    text = value.encode("utf-8", "surrogatepass")
    return f"{kind}-{salted_hmac(_SALT + kind, text, algorithm='sha256').hexdigest()[:32]}"


def of_user(pk: Any) -> str:
    """The key of a user: the primary key, plain where it can stand in a key."""
    text = str(pk)
    try:
        return check_text("a primary key", text, MOST_PLAIN)
    except ValueError:
        return digest("user", text)


def of_address(request: HttpRequest, trusted_proxies: int) -> str:
    """The key of the client's address: IPv6 by /64, since one client has a whole one."""
    return digest("ip", network(address(request, trusted_proxies)))


def of_value(value: Any) -> str:
    """The key for what a policy's own callable returned. TypeError unless a str or an int."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"a policy's key must return a str, not {type(value).__name__}")
    return digest("key", str(value))


def possible_keys(text: str) -> list[str]:
    """The keys that stand for what a person typed: a primary key, an address, or a free-form value;
    likeliest first."""
    plain, net = of_user(text), network(text)
    by_address = digest("ip", net)
    is_address = net != text or re.fullmatch(r"[0-9.]+\.[0-9.]+|[0-9a-fA-F]*:.*", text)
    others = [text, plain] if plain != text else [plain]
    return [*([by_address] if is_address else []), *others, of_value(text), by_address]


def address(request: HttpRequest, trusted_proxies: int) -> str:
    """The client's address as far as it can be believed."""
    nearest = str(request.META.get("REMOTE_ADDR") or "")
    if trusted_proxies:
        # Each proxy appends the address that it saw; what lies further left anybody may write.
        passed = str(request.META.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        if len(passed) >= trusted_proxies:
            return _bare(passed[-trusted_proxies]) or nearest
    return nearest


def network(text: str) -> str:
    """The text of an address, of its /64 for IPv6; what is none comes back as it is."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False).network_address)
    return str(found)


def _bare(text: str) -> str:
    """An address without the port or the brackets that some proxies write; empty if none."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return ""
    return text


def user_of(request: Any) -> Any:
    """Django's or Django REST framework's user. ImproperlyConfigured when nothing sets one."""
    try:
        return request.user
    except AttributeError as error:
        raise ImproperlyConfigured(
            "A policy with key 'user' needs request.user: add AuthenticationMiddleware."
        ) from error
