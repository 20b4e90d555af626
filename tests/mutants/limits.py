"""Defects that are planted into the admission of requests, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "limits of one place are acquired in the order of the stack",
        '            semaphores.sort(key=lambda one: (one.name, one.id.using, one.key or ""))\n',
        "            pass\n",
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
        "min(policy.blocking_timeout, self.state.longest - self.state.waited)",
        "policy.blocking_timeout",
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
        "a grant in shadow mode is counted twice",
        "    count(name, shadow and 's' or 'g', 1)\n",
        "    if shadow then count(name, 's', 1) end\n    count(name, 'g', 1)\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "an interruption between two steps keeps the permit",
        "                take.got.release_later()\n",
        "                pass\n",
        "test_requests_admission.py",
    ),
    Mutant(
        "requests from before an outage don't count in the local limit",
        "holds = [*self._by_redis.copy().values(), *self._local.copy().values()]",
        "holds = [*self._local.copy().values()]",
        "test_requests_outage.py",
    ),
    Mutant(
        "requests that were admitted in an outage don't count after it",
        "if policy.enforce and local_limiter.has_local_admissions(semaphore.id):",
        "if False:",
        "test_requests_outage.py",
    ),
    Mutant(
        "each request is a trial after an answered probe",
        "trial, self._probe_answered = self._probe_answered, False",
        "trial = self._probe_answered",
        "test_requests_outage.py",
    ),
    Mutant(
        "the turn of a share does not end with an admission",
        "                waiter.turn = turn\n",
        "                pass\n",
        "test_requests_shares.py",
    ),
]
