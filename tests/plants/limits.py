"""Defects of what requests meet."""

from __future__ import annotations

from .plant import Plant

CHECKS = "test_checks.py::"
BREAKER = "test_requests_breaker.py::"
ENFORCEMENT = "test_requests_enforcement.py::"
POLICY = "test_requests_policy.py::"
REFUSAL = "test_requests_refusal.py::"
SEATS = "test_requests_seats.py::"

PLANTS = [
    Plant(
        "marks of class handlers are not seen by checks",
        "limits/decorator.py",
        "    for one in known if method is None else {method.lower()}.intersection(known):",
        "    for one in () if method is None else {method.lower()}.intersection(known):",
        (CHECKS + "test_a_view_whose_limit_is_missing_or_impossible",),
    ),
    Plant(
        "a label without the user",
        "limits/enforcement.py",
        '"" if user is None or user.pk is None else str(user.pk),',
        '"",',
        (ENFORCEMENT + "test_a_label_says_the_view_the_user_and_the_id_of_the_request",),
    ),
    Plant(
        "a refused outage answers 429",
        "limits/enforcement.py",
        "self.policy.refusal_status if self.refusal.why.crowded else 503",
        "self.policy.refusal_status",
        (POLICY + "test_the_status_tells_the_client_who_is_to_blame",),
    ),
    Plant(
        "a template response gives back before it is rendered",
        "limits/holding.py",
        'if not self or not (streaming or not getattr(response, "is_rendered", True)):',
        "if not self or not streaming:",
        (ENFORCEMENT + "test_a_response_that_is_still_to_be_rendered_keeps_its_permit",),
    ),
    Plant(
        "IPv4 in IPv6 is a network",
        "limits/identity.py",
        "        if found.ipv4_mapped is not None:\n",
        "        if False:\n",
        (POLICY + "test_addresses_are_one_by_their_network_and_never_shown",),
    ),
    Plant(
        "True is a key",
        "limits/identity.py",
        "if isinstance(value, bool) or not isinstance(value, (str, int)):",
        "if not isinstance(value, (str, int)):",
        (POLICY + "test_what_a_callable_returns_is_digested_and_has_to_be_text",),
    ),
    Plant(
        "the mixin's initkwargs are lost",
        "limits/mixin.py",
        "return declared_by(self._view_class(**self._initkwargs))",
        "return declared_by(self._view_class())",
        (CHECKS + "test_a_view_whose_limit_is_given_somewhere",),
    ),
    Plant(
        "a fork keeps its parent's breaker",
        "limits/outage.py",
        "if found is not None and found.pid != os.getpid():",
        "if False:",
        (BREAKER + "test_a_fork_has_breakers_and_rooms_of_its_own",),
    ),
    Plant(
        "breakers outlive the settings",
        "limits/outage.py",
        "            _breakers.popitem()[1].retire()\n",
        "            _breakers.popitem()\n            break\n",
        (BREAKER + "test_settings_that_changed_end_all_probing",),
    ),
    Plant(
        "SEMAPHORES come before ENDPOINTS",
        "limits/policy.py",
        "*(dict(layer) for layer in (*layers, config.named(name))), requests",
        "*(dict(layer) for layer in (config.named(name), *layers)), requests",
        (
            POLICY + "test_the_decorator_beats_the_endpoint_which_beats_the_semaphore_which_beats"
            "_requests",
        ),
    ),
    Plant(
        "an entry's options count for another name too",
        "limits/policy.py",
        "if entry is not None and entry.name == name else {}",
        "if entry is not None else {}",
        (POLICY + "test_an_endpoint_says_nothing_of_another_semaphore_on_its_view",),
    ),
    Plant(
        "Retry-After forgets this request itself",
        "limits/refusal.py",
        "ahead = refused.refusal.waiting + 1",
        "ahead = refused.refusal.waiting",
        (POLICY + "test_retry_after_heeds_an_operators_limit_and_min_hold",),
    ),
    Plant(
        "Retry-After is rounded down",
        "limits/refusal.py",
        "return math.ceil(min(wait * random.uniform(1, 1 + JITTER), LATEST))",
        "return math.floor(min(wait * random.uniform(1, 1 + JITTER), LATEST))",
        (REFUSAL + "test_it_may_come_again_when_those_ahead_have_had_their_time",),
    ),
    Plant(
        "a fork inherits the seats of its parent",
        "limits/seats.py",
        "        if self._pid != os.getpid():  # the waiting threads are not in the fork\n"
        "            self._pid, self._taken = os.getpid(), weakref.WeakSet()\n",
        "",
        (SEATS + "test_those_who_wait_in_the_parent_take_no_seats_of_a_fork",),
    ),
    Plant(
        "a fork's first seat outlives nothing",
        "limits/seats.py",
        "while patient and (now := clock()) < end:",
        "while (now := clock()) < end:",
        (SEATS + "test_a_patient_request_gets_the_seat_of_another_that_did_not_have_to_wait",),
    ),
]
