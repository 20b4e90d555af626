"""Defects of request limits."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "limits of one place are acquired in the order of the stack",
        "        semaphores.sort(key=_order)\n",
        "        pass\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "limits of one name are not sorted by key",
        'semaphore.place.using, semaphore.key or ""',
        'semaphore.place.using, ""',
        "test_requests_admission.py",
    ),
    Mutant(
        "stacked decorators are two places",
        "return stack if stack is not None and view.__wrapped__ is stack.wraps else None",
        "return None",
        "test_requests_admission.py",
    ),
    Mutant(
        "a copied decorator counts as the outer decorator",
        "return stack if stack is not None and view.__wrapped__ is stack.wraps else None",
        "return stack",
        "test_requests_admission.py",
    ),
    Mutant(
        "each limit waits for its full blocking_timeout",
        "    return float(min(policy.blocking_timeout, longest - waited))\n",
        "    return float(policy.blocking_timeout)\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "the rejection of a request without a wait slot has another reason",
        "            return replace(got, reason=slots.reason)\n",
        "            return got\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "a request without a wait slot doesn't see that the limit is paused",
        "if seconds > 0 and no_slot and got.reason in (FULL, TIMEOUT):",
        "if seconds > 0 and no_slot:",
        "test_requests_admission.py",
    ),
    Mutant(
        "a wait continues without a wait slot",
        "            if self.no_slot:\n                return False\n",
        "",
        "test_requests_admission.py",
    ),
    Mutant(
        "sync views under ASGI have the thread limit of WSGI",
        "if isinstance(request, ASGIRequest):",
        "if False:",
        "test_requests_admission.py",
    ),
    Mutant(
        "a waiter that gave up during a pause has the reason timeout",
        "(name.paused and 'paused ' or reason)",
        "reason",
        "test_requests_admission.py",
    ),
    Mutant(
        "a grant in shadow mode is counted twice",
        "    count(name, shadow and 's' or 'g', 1)\n",
        "    if shadow then count(name, 's', 1) end\n    count(name, 'g', 1)\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "an interruption between two steps keeps the permit",
        "            take.got.release_later()\n",
        "            pass\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "requests from before an outage don't count in the local limit",
        "                counter.inside[hold] = False, share\n",
        "                pass\n",
        "test_requests_outage.py",
    ),
    Mutant(
        "requests that were admitted in an outage don't count after it",
        "if policy.enforce and limiter.has_local_admissions(place):",
        "if False:",
        "test_requests_outage.py",
    ),
    Mutant(
        "a locally rejected request keeps the trial of the breaker",
        "                redis.cancelled(generation)\n                return rejection\n",
        "                return rejection\n",
        "test_requests_outage.py",
    ),
    Mutant(
        "a cancelled request keeps the trial of the breaker",
        "            redis.cancelled(generation)\n            raise\n",
        "            raise\n",
        "test_requests_outage.py",
    ),
    Mutant(
        "each request is a trial after an answered probe",
        "trial, self._probe_answered = self._probe_answered, False",
        "trial = self._probe_answered",
        "test_requests_outage.py",
    ),
    Mutant(
        "SEMAPHORES take precedence over ENDPOINTS",
        "*(dict(layer) for layer in (*layers, config.named(name))), requests",
        "*(dict(layer) for layer in (config.named(name), *layers)), requests",
        "test_requests_policy.py",
    ),
    Mutant(
        "the options of an entry apply to another name",
        "if entry is not None and entry.name == name else {}",
        "if entry is not None else {}",
        "test_requests_policy.py",
    ),
    Mutant(
        "an IPv4-mapped IPv6 address is reduced to its network",
        "        if found.ipv4_mapped is not None:\n",
        "        if False:\n",
        "test_requests_policy.py",
    ),
    Mutant(
        "True is accepted as a key",
        "if isinstance(value, bool) or not isinstance(value, (str, int)):",
        "if not isinstance(value, (str, int)):",
        "test_requests_policy.py",
    ),
    Mutant(
        "the mixin's initkwargs are lost",
        "return declared_by(self._view_class(**self._initkwargs))",
        "return declared_by(self._view_class())",
        "test_checks.py",
    ),
    Mutant(
        "non_atomic_requests has no effect",
        'database["ATOMIC_REQUESTS"] and alias not in skipped',
        'database["ATOMIC_REQUESTS"]',
        "test_requests_admission.py",
    ),
    Mutant(
        "the mixin's options are read before the view is set up",
        "        view.setup(request, *args, **kwargs)\n",
        "",
        "test_requests_views.py",
    ),
    Mutant(
        "a preflight request takes a permit of the middleware under ASGI",
        "await aadmit(policies, request, preflight=is_preflight(request, view))",
        "await aadmit(policies, request)",
        "test_requests_views.py",
    ),
    Mutant(
        "the digest of a key has another salt",
        '_SALT = "django_redis_sync.limits.identity"',
        '_SALT = "django_redis_sync.identity"',
        "test_requests_policy.py",
    ),
]
