"""Defects of what Python code takes."""

from __future__ import annotations

from .plant import Plant

CALLERS = "test_locks_callers.py::"
FACES = "test_locks_faces.py::"
HANDLE = "test_locks_handle.py::"
LEASE_STATE = "test_locks_lease_state.py::"
TERMS = "test_locks_terms.py::"
TRANSACTIONS = "test_requests_transactions.py::"

PLANTS = [
    Plant(
        "collections follow each other without a pause",
        "locks/abandoned.py",
        "    _next[0] = clock() + PAUSE\n",
        "",
        (FACES + "test_leases_of_ended_loops_are_collected_now_and_then",),
    ),
    Plant(
        "acquire_all waits so long for each",
        "locks/acquire_all.py",
        "return None if deadline is None else max(0.0, deadline - clock())",
        "return None if deadline is None else 0.3",
        (FACES + "test_the_time_to_wait_is_that_of_all_together",),
    ),
    Plant(
        "released leases pile up",
        "locks/callers.py",
        "        if len(self.leases) > self.most:\n            self._sweep()",
        "        if False:\n            self._sweep()",
        (CALLERS + "test_leases_given_back_by_their_own_release_do_not_pile_up",),
    ),
    Plant(
        "a block left twice releases twice",
        "locks/callers.py",
        "if block.taken is _OVER:",
        "if False:",
        (CALLERS + "test_a_block_that_was_left_is_not_left_again",),
    ),
    Plant(
        "holds are counted in seconds",
        "locks/counting.py",
        "int((clock() - grant.began) * 1000)",
        "int((clock() - grant.began))",
        (FACES + "test_how_long_a_lease_was_held_is_counted_in_milliseconds",),
    ),
    Plant(
        "shadow's refusals are not counted",
        "locks/counting.py",
        '        clerk.count(terms, "s", 0)\n',
        "        pass\n",
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
        "a failed release is not done later",
        "locks/lease.py",
        "        except BaseException:\n"
        "            self._give_back_later()\n"
        "            raise\n"
        "        self._released(released)\n"
        "\n"
        "    async",
        "        except BaseException:\n"
        "            raise\n"
        "        self._released(released)\n"
        "\n"
        "    async",
        (FACES + "test_what_could_not_be_given_back_is_given_back_later",),
    ),
    Plant(
        "a downgraded writer's handle says writer",
        "locks/lease.py",
        "grant = state.grant._replace(permits=state.permits)",
        "grant = state.grant",
        (FACES + "test_a_writer_that_became_a_reader_is_handed_on_as_a_reader",),
    ),
    Plant(
        "a hard lease renewed for less ends as before (while in flight)",
        "locks/lease_state.py",
        "            self._course.ends = min(self._course.ends, end)\n",
        "            pass\n",
        (LEASE_STATE + "test_a_shorter_hard_lease_stays_shorter",),
    ),
    Plant(
        "a detach gives less than was asked for",
        "locks/lease_state.py",
        "if not leaving or self.until >= end - _CLOSE:",
        "if True:",
        (LEASE_STATE + "test_a_detached_lease_that_another_thread_cut_short_is_renewed_once_more",),
    ),
    Plant(
        "astatus of a child is that of its policy",
        "locks/semaphore.py",
        "return await astatus_of(self.name, self.key, using=self.alias())",
        "return await astatus_of(self.name, using=self.alias())",
        (FACES + "test_the_status_of_a_child_is_its_own",),
    ),
    Plant(
        "status of a child is that of its policy",
        "locks/semaphore.py",
        "return status_of(self.name, self.key, using=self.alias())",
        "return status_of(self.name, using=self.alias())",
        (FACES + "test_the_status_of_a_child_is_its_own",),
    ),
    Plant(
        "a coroutine of a sync function is let go at once",
        "locks/synchronized.py",
        "if not inspect.isawaitable(result):",
        "if True:",
        (FACES + "test_what_a_sync_function_returns_to_be_awaited_is_awaited_inside",),
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
        "MAX_HOLD is not read",
        "locks/terms.py",
        "max_hold = config.max_hold if max_hold is None else max_hold",
        "pass",
        (TERMS + "test_the_argument_rules_then_semaphores_then_the_defaults",),
    ),
    Plant(
        "a transaction's release runs on the collector's thread",
        "locks/transactions.py",
        "if threading.get_ident() == thread:",
        "if True:",
        (FACES + "test_a_lease_of_a_transaction_is_given_back_where_it_was_taken",),
    ),
    Plant(
        "an error of a late release is raised",
        "locks/transactions.py",
        '        logger.error("releasing %r at the end of a transaction: %s", lease.name, error)',
        "        raise",
        (FACES + "test_what_fails_at_the_end_of_a_transaction_is_said",),
    ),
    Plant(
        "ends that no block began pile up",
        "locks/callers.py",
        "        _loaded.blocks = [ref for ref in _loaded.blocks if ref() is not None]\n",
        "",
        (CALLERS + "test_ends_that_were_loaded_for_no_block_do_not_pile_up",),
    ),
    Plant(
        "whoever releases nothing is not told of what",
        "locks/variants.py",
        "raise NotAcquired(text, name=self.name)",
        "raise NotAcquired(text)",
        (FACES + "test_whoever_releases_nothing_is_told_of_which_lock",),
    ),
    Plant(
        "a lease that could not be detached is renewed no more",
        "locks/lease_state.py",
        "            self._course.leaving &= not leaving\n",
        "",
        (LEASE_STATE + "test_a_lease_that_could_not_be_detached_is_renewed_on",),
    ),
    Plant(
        "a child is locked when its policy is",
        "locks/semaphore.py",
        "keys = keys_of(conf.current().prefix(self.alias()), self.name, self.key)",
        "keys = keys_of(conf.current().prefix(self.alias()), self.name)",
        (FACES + "test_the_status_of_a_child_is_its_own",),
    ),
    Plant(
        "a race is warned of at a line of ours",
        "locks/transactions.py",
        "TransactionRace, stacklevel=_level_outside())",
        "TransactionRace, stacklevel=5)",
        (TRANSACTIONS + "test_the_warning_is_at_the_line_of_the_project_that_gives_it_back",),
    ),
    Plant(
        "an undone reentrant lock is let go (async)",
        "locks/variants.py",
        "        if self._last(lease):\n            await super().aundo(lease, *error)",
        "        await super().aundo(lease, *error)",
        ("test_locks_rlock.py::test_several_at_once_leave_an_outer_level_alone",),
    ),
    Plant(
        "of several permits a transaction takes one",
        "locks/semaphore.py",
        "if self.release_on_commit and ask.wait and ask.limit == 1:",
        "if self.release_on_commit and ask.wait:",
        (TRANSACTIONS + "test_a_transaction_that_would_wait_for_itself_is_told",),
    ),
    Plant(
        "a release by hand waits for no commit",
        "locks/semaphore.py",
        "        if not self._deferred(lease):\n            lease.release()",
        "        self._deferred(lease)\n        lease.release()",
        (TRANSACTIONS + "test_in_each_way_a_lease_is_given_back_after_the_commit",),
    ),
    Plant(
        "whether it is owned is asked once",
        "locks/lease_state.py",
        "return plans.confirm(self.terms.keys, self.grant, self.terms.attempt, now)",
        "return plans.confirm(self.terms.keys, self.grant, self.terms.attempt, 0.0)",
        ("behaviour/test_faults.py::test_a_lost_reply_costs_no_other_call_its_answer",),
    ),
]
