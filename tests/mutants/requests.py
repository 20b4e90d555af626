"""Defects of what holds a request's permits, of its rejection, the middleware, and the checks."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "a project's response that is None lets the request in",
        "    if isinstance(made, HttpResponseBase):\n        return made\n",
        "    return made\n",
        "test_requests_views.py",
    ),
    Plant(
        "Retry-After is rounded down",
        "return math.ceil(min(wait",
        "return math.floor(min(wait",
        "test_requests_rejection.py",
    ),
    Plant(
        "the end of a request with another response is not heard",
        "    closing.holds.append(hold)\n",
        "",
        "test_requests_views.py",
    ),
    Plant(
        "a template response releases before it is rendered",
        'if not self or not (streaming or not getattr(response, "is_rendered", True)):',
        "if not self or not streaming:",
        "test_requests_response.py",
    ),
    Plant(
        "a stream outlives its lease",
        "                    permit.lease.ends_stream(self)\n",
        "                    pass\n",
        "test_requests_response.py",
    ),
    Plant(
        "a mixin's closure is remembered",
        "dict(given), True) if of_request else",
        "dict(given), True) if False else",
        "test_requests_views.py",
    ),
    Plant(
        "a sync view's coroutine is returned",
        "raise _not_async(view, response)",
        "return response",
        "test_requests_views.py",
    ),
    Plant(
        "an outage inside a view is an error of the server",
        "if not isinstance(error, (NotAcquired, Unavailable)):",
        "if not isinstance(error, NotAcquired):",
        "test_requests_views.py",
    ),
    Plant(
        "ERROR_RESPONSES has no effect",
        "        if not conf.current().error_responses:\n            return None\n",
        "",
        "test_requests_views.py",
    ),
    Plant(
        "the middleware keeps its permit when the view raises",
        "            if hold := _hold_of(request):\n                hold.release()\n",
        "",
        "test_requests_response.py",
    ),
    Plant(
        "a path to a str is a key",
        "    if not callable(found):\n",
        "    if False:\n",
        "test_checks.py",
    ),
    Plant(
        "a pool of four connections is too small",
        "given < MIN_CONNECTIONS",
        "given <= MIN_CONNECTIONS",
        "test_checks.py",
    ),
    Plant(
        "a dispatch with super() hides the mixin",
        'not {"super", "dispatch"} <= {*code.co_names}',
        'not {"super"} > {*code.co_names}',
        "test_checks.py",
    ),
]
