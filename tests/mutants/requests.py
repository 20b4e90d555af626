"""Defects of the permits of requests, of rejections, the middleware, and the checks."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "a response function that returns None admits the request",
        "    if isinstance(made, HttpResponseBase):\n        return made\n",
        "    return made\n",
        "test_requests_views.py",
    ),
    Mutant(
        "Retry-After is rounded down",
        "return math.ceil(min(wait",
        "return math.floor(min(wait",
        "test_requests_rejection.py",
    ),
    Mutant(
        "a request with a replaced response keeps its permit",
        "    closing.holds.append(hold)\n",
        "",
        "test_requests_views.py",
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
        "a sync view's coroutine is returned",
        "raise _not_async(view, response)",
        "return response",
        "test_requests_views.py",
    ),
    Mutant(
        "Unavailable in a view causes a server error",
        "if not isinstance(error, (NotAcquired, Unavailable)):",
        "if not isinstance(error, NotAcquired):",
        "test_requests_views.py",
    ),
    Mutant(
        "ERROR_RESPONSES has no effect",
        "        if not conf.current().error_responses:\n            return None\n",
        "",
        "test_requests_views.py",
    ),
    Mutant(
        "the middleware keeps its permit if the view raises",
        "            if hold := _hold_of(request):\n                hold.release()\n",
        "",
        "test_requests_response.py",
    ),
    Mutant(
        "a dotted path to a str is accepted as a key",
        "    if not callable(found):\n",
        "    if False:\n",
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
