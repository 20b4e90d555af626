"""Defects of what requests meet."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "limits of one place are taken in the order of the stack",
        "        semaphores.sort(key=_order)\n",
        "        pass\n",
        "test_requests_admission.py",
    ),
    Plant(
        "limits of one name are not sorted by key",
        'semaphore.place.using, semaphore.key or ""',
        'semaphore.place.using, ""',
        "test_requests_admission.py",
    ),
    Plant(
        "decorators on each other are two places",
        "return stack if stack is not None and view.__wrapped__ is stack.wraps else None",
        "return None",
        "test_requests_admission.py",
    ),
    Plant(
        "a decorator that was copied counts as the outer one",
        "return stack if stack is not None and view.__wrapped__ is stack.wraps else None",
        "return stack",
        "test_requests_admission.py",
    ),
    Plant(
        "each limit waits as if it were alone",
        "    return float(min(policy.blocking_timeout, longest - waited))\n",
        "    return float(policy.blocking_timeout)\n",
        "test_requests_admission.py",
    ),
    Plant(
        "a request without a slot is rejected as any other",
        "            return replace(got, reason=slots.reason)\n",
        "            return got\n",
        "test_requests_admission.py",
    ),
    Plant(
        "the setting hides that the limit is paused",
        "if seconds > 0 and no_slot and got.reason in (FULL, TIMEOUT):",
        "if seconds > 0 and no_slot:",
        "test_requests_admission.py",
    ),
    Plant(
        "a wait goes on without a slot",
        "            if self.no_slot:\n                return False\n",
        "",
        "test_requests_admission.py",
    ),
    Plant(
        "sync views under ASGI have as few threads as any",
        "if isinstance(request, ASGIRequest):",
        "if False:",
        "test_requests_admission.py",
    ),
    Plant(
        "a waiter that gave up in a pause timed out",
        "(name.paused and 'paused ' or reason)",
        "reason",
        "test_requests_admission.py",
    ),
    Plant(
        "a grant of shadow mode is counted twice",
        "    count(name, shadow and 's' or 'g', 1)\n",
        "    if shadow then count(name, 's', 1) end\n    count(name, 'g', 1)\n",
        "test_requests_admission.py",
    ),
    Plant(
        "an interruption between two steps keeps the permit",
        "            take.got.release_later()\n",
        "            pass\n",
        "test_requests_admission.py",
    ),
    Plant(
        "requests from before an outage don't count",
        "                counter.inside[hold] = False, share\n",
        "                pass\n",
        "test_requests_outage.py",
    ),
    Plant(
        "requests from an outage don't count after it",
        "if policy.enforce and limiter.has_local_admissions(place):",
        "if False:",
        "test_requests_outage.py",
    ),
    Plant(
        "a trial that is rejected locally leaves the breaker without one",
        "                redis.cancelled(generation)\n                return rejection\n",
        "                return rejection\n",
        "test_requests_outage.py",
    ),
    Plant(
        "a cancelled trial leaves the breaker without one",
        "            redis.cancelled(generation)\n            raise\n",
        "            raise\n",
        "test_requests_outage.py",
    ),
    Plant(
        "every request tries when a probe was answered",
        "trial, self._probe_answered = self._probe_answered, False",
        "trial = self._probe_answered",
        "test_requests_outage.py",
    ),
    Plant(
        "SEMAPHORES come before ENDPOINTS",
        "*(dict(layer) for layer in (*layers, config.named(name))), requests",
        "*(dict(layer) for layer in (config.named(name), *layers)), requests",
        "test_requests_policy.py",
    ),
    Plant(
        "an entry's options count for another name too",
        "if entry is not None and entry.name == name else {}",
        "if entry is not None else {}",
        "test_requests_policy.py",
    ),
    Plant(
        "IPv4 in IPv6 is a network",
        "        if found.ipv4_mapped is not None:\n",
        "        if False:\n",
        "test_requests_policy.py",
    ),
    Plant(
        "True is a key",
        "if isinstance(value, bool) or not isinstance(value, (str, int)):",
        "if not isinstance(value, (str, int)):",
        "test_requests_policy.py",
    ),
    Plant(
        "the mixin's initkwargs are lost",
        "return declared_by(self._view_class(**self._initkwargs))",
        "return declared_by(self._view_class())",
        "test_checks.py",
    ),
    Plant(
        "non_atomic_requests is not heeded",
        'database["ATOMIC_REQUESTS"] and alias not in skipped',
        'database["ATOMIC_REQUESTS"]',
        "test_requests_admission.py",
    ),
    Plant(
        "the mixin's options are asked before the view is set up",
        "        view.setup(request, *args, **kwargs)\n",
        "",
        "test_requests_views.py",
    ),
    Plant(
        "under ASGI a preflight takes a permit of the middleware",
        "await aadmit(policies, request, preflight=is_preflight(request, view))",
        "await aadmit(policies, request)",
        "test_requests_views.py",
    ),
    Plant(
        "a version of its own counts clients apart",
        '_SALT = "django_redis_sync.limits.identity"',
        '_SALT = "django_redis_sync.identity"',
        "test_requests_policy.py",
    ),
]
