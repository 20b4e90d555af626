"""Defects that are planted into policies, responses, middleware, and checks, to see that tests find
them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "SEMAPHORES take precedence over ENDPOINTS",
        "*(dict(layer) for layer in (*layers, config.named(name))), requests",
        "*(dict(layer) for layer in (config.named(name), *layers)), requests",
        "test_requests_policy.py",
    ),
    Mutant(
        "an IPv4-mapped IPv6 address is reduced to its network",
        "        if found.ipv4_mapped is not None:\n",
        "        if False:\n",
        "test_requests_policy.py",
    ),
    Mutant(
        "the digest of a key has another salt",
        '_SALT = "django_redis_sync.limits.identity"',
        '_SALT = "django_redis_sync.identity"',
        "test_requests_policy.py",
    ),
    Mutant(
        "a response function that returns None admits the request",
        "    if isinstance(made, HttpResponseBase):\n        return made\n",
        "    return made\n",
        "test_requests_rejection.py",
    ),
    Mutant(
        "Retry-After is rounded down",
        "return math.ceil(min(wait",
        "return math.floor(min(wait",
        "test_requests_rejection.py",
    ),
    Mutant(
        "a request with a replaced response keeps its permit",
        '    request.__dict__["close"] = partial(_close, weakref.ref(request), known, hold)\n',
        "",
        "test_requests_response.py",
    ),
    Mutant(
        "a template response releases its permit before it is rendered",
        'if not self or not (streaming or not getattr(response, "is_rendered", True)):',
        "if not self or not streaming:",
        "test_requests_response.py",
    ),
    Mutant(
        "a stream outlives its lease",
        "                    permit.lease.ends_stream(self)\n",
        "                    pass\n",
        "test_requests_response.py",
    ),
    Mutant(
        "options of a mixin that depend on the request are cached",
        "dict(given), True) if of_request else",
        "dict(given), True) if False else",
        "test_requests_views.py",
    ),
    Mutant(
        "non_atomic_requests has no effect",
        'database["ATOMIC_REQUESTS"] and alias not in skipped',
        'database["ATOMIC_REQUESTS"]',
        "test_requests_views.py",
    ),
    Mutant(
        "a preflight request takes a permit of the middleware under ASGI",
        "await aadmit(policies, request, preflight=is_preflight(request, view))",
        "await aadmit(policies, request)",
        "test_requests_views.py",
    ),
    Mutant(
        "the mixin's initkwargs are lost",
        "return declared_by(self._view_class(**self._initkwargs))",
        "return declared_by(self._view_class())",
        "test_checks.py",
    ),
    Mutant(
        "a pool with the minimum of connections counts as too small",
        "given < MIN_CONNECTIONS",
        "given <= MIN_CONNECTIONS",
        "test_checks.py",
    ),
    Mutant(
        "a dispatch with super() hides the mixin",
        'not {"super", "dispatch"} <= {*code.co_names}',
        'not {"super"} > {*code.co_names}',
        "test_checks.py",
    ),
]
