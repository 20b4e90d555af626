"""Defects of what Python code takes."""

from __future__ import annotations

from .plant import Plant

CALLERS = "test_locks_callers.py::"
FACES = "test_locks_faces.py::"
HANDLE = "test_locks_handle.py::"
LEASE_STATE = "test_locks_lease_state.py::"
TERMS = "test_locks_terms.py::"

PLANTS = [
    Plant(
        "acquire_all waits so long for each",
        "locks/acquire_all.py",
        "return None if deadline is None else max(0.0, deadline - clock())",
        "return None if deadline is None else 0.3",
        (FACES + "test_the_time_to_wait_is_that_of_all_together",),
    ),
    Plant(
        "a block left twice releases twice",
        "locks/callers.py",
        "if block.taken is _OVER:",
        "if False:",
        (CALLERS + "test_a_block_that_was_left_is_not_left_again",),
    ),
    Plant(
        "released leases pile up",
        "locks/callers.py",
        "        if len(self.leases) > self.most:\n            self._sweep()",
        "        if False:\n            self._sweep()",
        (CALLERS + "test_leases_given_back_by_their_own_release_do_not_pile_up",),
    ),
    Plant(
        "shadow's refusals are not counted",
        "locks/counting.py",
        '            _count(terms, "s", 0)\n',
        "            pass\n",
        (FACES + "test_how_an_ask_ended_is_counted",),
    ),
    Plant(
        "waits are counted in seconds",
        "locks/counting.py",
        "int(got.waited * 1000)",
        "int(got.waited)",
        (FACES + "test_how_an_ask_ended_is_counted",),
    ),
    Plant(
        "a handle forgets max_hold",
        "locks/handle.py",
        "terms.renew, terms.max_hold, terms.min_hold",
        'terms.renew, float("inf"), terms.min_hold',
        (HANDLE + "test_the_terms_and_the_grant_arrive_as_they_were",),
    ),
    Plant(
        "a handle forgets min_hold",
        "locks/handle.py",
        "terms.max_hold, terms.min_hold, grant.unanswered",
        "terms.max_hold, 0.0, grant.unanswered",
        (HANDLE + "test_the_terms_and_the_grant_arrive_as_they_were",),
    ),
    Plant(
        "released is not counted",
        "locks/lease.py",
        "        counting.released(self._state.terms, self._state.grant)\n",
        "",
        (FACES + "test_a_lease_that_is_given_back_or_lost_is_counted_once",),
    ),
    Plant(
        "a detach gives less than was asked for",
        "locks/lease_state.py",
        "if not leaving or self.until >= end - _CLOSE:",
        "if True:",
        (LEASE_STATE + "test_a_detached_lease_that_another_thread_cut_short_is_renewed_once_more",),
    ),
    Plant(
        "a failed renewal is tried again no sooner than at its end",
        "locks/lease_state.py",
        "pause = min(1.0, max(0.05, self.terms.timeout / 10))",
        "pause = self.terms.timeout",
        (LEASE_STATE + "test_it_is_given_up_shortly_before_the_server_may_give_it_away",),
    ),
    Plant(
        "astatus of a child is that of its policy",
        "locks/semaphore.py",
        "return await astatus_of(self.name, self.key, using=self.alias())",
        "return await astatus_of(self.name, using=self.alias())",
        (FACES + "test_the_status_of_a_child_is_its_own",),
    ),
    Plant(
        "thread_local=False is not heeded",
        "locks/semaphore.py",
        "PerCaller() if thread_local else Shared()",
        "PerCaller()",
        (FACES + "test_an_object_for_all_threads_gives_back_what_any_of_them_took",),
    ),
    Plant(
        "synchronized's label rules",
        "locks/synchronized.py",
        '{"label": _label(function), **options}',
        '{**options, "label": _label(function)}',
        (FACES + "test_a_label_of_the_callers_own_rules",),
    ),
    Plant(
        "BLOCKING_TIMEOUT is not read",
        "locks/terms.py",
        "(*said, config.blocking_timeout)",
        "said",
        (TERMS + "test_the_argument_rules_then_semaphores_then_the_defaults",),
    ),
    Plant(
        "a hard lease is renewed",
        "locks/terms.py",
        "renew = timeout is None if self.renew is None else self.renew",
        "renew = True if self.renew is None else self.renew",
        (TERMS + "test_a_lease_of_a_given_time_is_renewed_when_told_so",),
    ),
]
