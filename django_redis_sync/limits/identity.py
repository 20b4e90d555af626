"""The caller of a request: the key of its semaphore. Addresses and free-form keys digested."""

from __future__ import annotations

import ipaddress
import re
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from .. import conf
from ..logs import logger
from ..protocol.keys import check_text

_SALT = "django_redis_sync.limits.identity"
#: Bytes of a primary key that stands in a key as it is.
MOST_PLAIN = 100


def digest(kind: str, value: str, secret: str | None = None) -> str:
    """The digest that stands in a key for an address (`kind` ip) or a free-form value (key).

    `secret`: the oldest of SECRET_KEY and SECRET_KEY_FALLBACKS, so that limits and an operator's
    marks outlive the change of SECRET_KEY for as long as the old key is a fallback.
    """
    text = value.encode("utf-8", "surrogatepass")
    made = salted_hmac(_SALT + kind, text, secret=secret or _secrets()[0], algorithm="sha256")
    return f"{kind}-{made.hexdigest()[:32]}"


def _secrets() -> list[Any]:
    """The oldest first."""
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS][::-1]


def of_user(pk: Any) -> str:
    """The key of a user: the primary key, plain where it can stand in a key."""
    text = str(pk)
    try:
        return check_text("a primary key", text, MOST_PLAIN)
    except ValueError:
        return digest("user", text)


def of_address(request: HttpRequest, trusted_proxies: int, ipv6_prefix: int = 64) -> str:
    """The key of the client's address: of its network for IPv6, of which a client has a whole."""
    found = address(request, trusted_proxies)
    if not found:
        _warn_of_no_address()
    return digest("ip", network(found, ipv6_prefix))


@cache
def _warn_of_no_address() -> None:
    logger.warning(
        "requests come without an address, as behind a Unix socket: all of them are one client to "
        "limits by address. Have the proxy append to X-Forwarded-For, and set trusted_proxies"
    )


def of_value(value: Any) -> str:
    """The key for a policy's callable's result. TypeError unless a str or an int."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f"a policy's key must return a str, not {type(value).__name__}")
    return digest("key", str(value))


def possible_keys(text: str) -> list[str]:
    """The keys that a typed text may stand for: a primary key, an address, or a free-form value;
    likeliest first."""
    plain, net = of_user(text), network(text, conf.current().requests["ipv6_prefix"])
    by_address = digest("ip", net)
    is_address = re.fullmatch(r"[0-9.]+\.[0-9.]+|[0-9a-fA-F]*:.*", text)
    others = [text, plain] if plain != text else [plain]
    rotated = [
        digest(*said, secret) for secret in _secrets() for said in (("ip", net), ("key", text))
    ]
    return [*([by_address] if is_address else []), *others, of_value(text), by_address, *rotated]


def address(request: HttpRequest, trusted_proxies: int) -> str:
    """The client's address as far as it can be believed."""
    nearest = str(request.META.get("REMOTE_ADDR") or "")
    if trusted_proxies:
        # Each proxy appends the address that it saw; any client may write the rest, further left.
        passed = str(request.META.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        if len(passed) >= trusted_proxies:
            return _bare(passed[-trusted_proxies]) or nearest
    return nearest


#: Where the addresses of IPv4 clients lie that come through a NAT64, each by its last 32 bits.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: The same where a network chose its own prefix: of these an address is one client.
_OWN_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")


def network(text: str, ipv6_prefix: int = 64) -> str:
    """The text of an address, of its network for IPv6; any other text unchanged."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if found in _NAT64:
            return str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
        prefix = 128 if found in _OWN_NAT64 else ipv6_prefix
        return str(ipaddress.ip_network((found, prefix), strict=False).network_address)
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
    """Django's or Django REST framework's user. ImproperlyConfigured when no middleware sets it."""
    try:
        return request.user
    except AttributeError as error:
        raise ImproperlyConfigured(
            "A policy with key 'user' needs request.user: add AuthenticationMiddleware."
        ) from error
