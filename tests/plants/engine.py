"""Defects of the engine."""

from __future__ import annotations

from .plant import Plant

TOLD, BUDGETS = "behaviour/test_told.py::", "behaviour/test_budgets.py::"
KEEPER, THREADS = "test_engine_keeper.py::", "test_engine_threads.py::"
BATCHING = "test_engine_batching.py::"
BOOKS = "test_engine_books.py::"
CLUSTER = "test_engine_cluster.py::"
DRIVERS = "test_engine_drivers.py::"
HUB = "test_engine_hub.py::"
POOLS = "test_engine_pools.py::"
QUORUM = "test_engine_quorum.py::"
WIRE = "test_engine_wire.py::"

PLANTS = [
    Plant(
        "receivers run two seconds late",
        "engine/courier.py",
        "    from django.db import connections as databases\n",
        "    from django.db import connections as databases\n    import time; time.sleep(2)\n",
        (TOLD + "test_when_the_path_answers_nothing_it_is_told_before_another_has_it",),
    ),
    Plant(
        "a lease is called lost a little after its end",
        "locks/lease_state.py",
        "return self.until - self._doubt if not self.over else math.inf",
        "return self.until + 0.3 if not self.over else math.inf",
        (TOLD + "test_when_the_path_answers_nothing_it_is_told_before_another_has_it",),
    ),
    Plant(
        "the one that watches sends by itself, and waits for the answer",
        "engine/keeper.py",
        "while not self._worker.rouse() and self._orders:",
        "while self._orders:",
        (TOLD + "test_when_the_path_answers_nothing_it_is_told_before_another_has_it",),
    ),
    Plant(
        "receivers run on one thread",
        "engine/courier.py",
        "MOST_AT_ONCE, LINGER = 8, 5.0",
        "MOST_AT_ONCE, LINGER = 1, 5.0",
        (TOLD + "test_a_receiver_that_takes_its_time_makes_no_other_late",),
    ),
    Plant(
        "a lease is renewed at a half of its time",
        "locks/lease_state.py",
        "now + left / 3",
        "now + left / 2",
        (TOLD + "test_what_the_server_took_away_is_told_within_a_third_of_the_lease",),
    ),
    Plant(
        "a receiver that raises SystemExit ends its thread",
        "engine/courier.py",
        "        except BaseException:\n",
        "        except Exception:\n",
        (THREADS + "test_calls_sent_together_run_in_their_order_whatever_becomes_of_each",),
    ),
    Plant(
        "the budget of a call is three times what it should be",
        "locks/lease_state.py",
        "return 2 * self.attempt",
        "return 6 * self.attempt",
        (BUDGETS + "test_answers_that_are_lost_again_and_again_take_no_call_beyond_its_budget",),
    ),
    Plant(
        "a pool that waits is asked",
        "engine/pools.py",
        "    return plain and ",
        "    return True or ",
        (BUDGETS + "test_a_pool_that_waits_is_not_waited_for",),
    ),
    Plant(
        "a connection is made in the project's time, not in the caller's",
        "engine/pools.py",
        "min(within, s or ATTEMPT)",
        "(s or ATTEMPT)",
        (BUDGETS + "test_a_server_that_hangs_takes_no_call_beyond_its_budget",),
    ),
    Plant(
        "a waiter with a time of its own gives an answer five seconds",
        "locks/terms.py",
        "max(0.5, seconds / 2)",
        "max(5.0, seconds / 2)",
        (BUDGETS + "test_a_server_that_hangs_takes_no_call_beyond_its_budget",),
    ),
    Plant(
        "a thread that could not start counts as one",
        "engine/threads.py",
        "            self._say(error)\n",
        "            self._say(error)\n            self._thread = threading.current_thread()\n",
        (THREADS + "test_a_thread_that_could_not_start_is_started_by_the_next_work",),
    ),
    Plant(
        "a thread is awaited under a lock",
        "engine/threads.py",
        "self._starting.acquire(timeout=_STARTING)",
        "self._starting.acquire()",
        (
            THREADS
            + "test_a_caller_interrupted_at_any_bytecode_leaves_nothing_that_others_wait_for",
        ),
    ),
    Plant(
        "a round trip has as many renewals as there are",
        "engine/keeper.py",
        "BATCH = 256",
        "BATCH = 1_000_000",
        (KEEPER + "test_a_round_trip_has_no_more_than_a_batch_of_renewals",),
    ),
    Plant(
        "no renewal comes early to go with others",
        "engine/keeper.py",
        "EARLY = 1 / 8",
        "EARLY = 0.0",
        (KEEPER + "test_the_work_of_a_minute_grows_with_renewals_and_not_with_leases_times_looks",),
    ),
    Plant(
        "what is forgotten stays in the heap",
        "engine/schedule.py",
        "if len(self._heap) > 2 * len(self._when) + _STALE:",
        "if False:",
        ("test_engine_schedule.py",),
    ),
    Plant(
        "NOSCRIPT after the whole source is retried",
        "engine/batching.py",
        "isinstance(reply, errors.NoScriptError) and not whole",
        "isinstance(reply, errors.NoScriptError)",
        (BATCHING + "test_a_script_that_is_unknown_as_a_whole_is_no_more_sent",),
    ),
    Plant(
        "NOSCRIPT's retries come last",
        "engine/batching.py",
        "self._queue[:0] = again",
        "self._queue += again",
        (BATCHING + "test_scripts_to_be_sent_whole_stand_first_in_line",),
    ),
    Plant(
        "a process that ends drops its last events",
        "engine/clerk.py",
        "        for book in self._books:\n            book.hurry()\n",
        "",
        (BOOKS + "test_all_books_are_written_when_the_process_ends",),
    ),
    Plant(
        "an adopted lease is in no sum",
        "engine/clerk.py",
        "        if self.tally.due == math.inf and keys.keep:  # an adopted lease "
        "brings no event\n"
        "            self.tally.rouse()\n"
        "            self._worker.expect(self.tally.due)\n",
        "",
        (BOOKS + "test_an_adopted_lease_is_in_the_sums_though_nothing_happens",),
    ),
    Plant(
        "max_connections are the async client's too",
        "engine/clients.py",
        '| {"max_connections", "timeout", "queue_class"}',
        '| {"timeout", "queue_class"}',
        (WIRE + "test_an_async_client_neither_retries_by_itself_nor_takes_the_pools_options",),
    ),
    Plant(
        "no redirection is followed",
        "engine/cluster/routing.py",
        "MOST_HOPS = 4",
        "MOST_HOPS = 0",
        (CLUSTER + "test_the_node_that_has_the_slot_is_asked",),
    ),
    Plant(
        "ASK without ASKING (sync)",
        "engine/cluster/server.py",
        '                borrowed.send(pack(("ASKING",)), pack(args))\n'
        "                borrowed.read()\n",
        "                borrowed.send(pack(args))\n",
        (CLUSTER + "test_asking_stands_before_each_command",),
    ),
    Plant(
        "a suspect gets all the time",
        "engine/cluster/server.py",
        "        if self.topology.suspect(address):\n            steps",
        "        if False:\n            steps",
        (CLUSTER + "test_a_suspect_holds_up_the_renewals_of_the_others_for_a_moment_only",),
    ),
    Plant(
        "a lost node's slots are not asked for",
        "engine/cluster/topology.py",
        "            with contextlib.suppress(Failure):  # all of it is down: the "
        "last known map must do\n"
        "                self.look()\n",
        "            pass\n",
        (CLUSTER + "test_a_suspect_is_asked_last_until_it_answers",),
    ),
    Plant(
        "a silent node is not suspected",
        "engine/cluster/topology.py",
        "        self._suspects[address] = clock() + SUSPECT\n        if",
        "        if",
        (CLUSTER + "test_a_silent_node_is_suspected",),
    ),
    Plant(
        "a RESP2 hash is a list",
        "engine/commands.py",
        'if words[0] == "HGETALL" and isinstance(found, list):',
        "if False:",
        (WIRE + "test_a_hash_is_a_dict_in_either_protocol",),
    ),
    Plant(
        "a cancellation is swallowed",
        "engine/drivers.py",
        "        if cancelled is not None:\n"
        "            raise asyncio.CancelledError(*cancelled) from None\n"
        "        return stop.value",
        "        return stop.value",
        (DRIVERS + "test_to_the_end_a_cancellation_waits_and_then_goes_on",),
    ),
    Plant(
        "a cancelled release goes on at once",
        "engine/drivers.py",
        "            if to_the_end:\n                doing = Outlasting",
        "            if False:\n                doing = Outlasting",
        (DRIVERS + "test_to_the_end_a_cancellation_waits_and_then_goes_on",),
    ),
    Plant(
        "errands are not tried again",
        "engine/errands.py",
        "                    self._put_off([order])\n",
        "                    pass\n",
        (BOOKS + "test_what_failed_is_tried_again_in_its_order_until_it_is_given_up",),
    ),
    Plant(
        "errands come in any order",
        "engine/errands.py",
        "self._fresh.extendleft(reversed(self._failed))",
        "self._fresh.extend(self._failed)",
        (BOOKS + "test_what_failed_is_tried_again_in_its_order_until_it_is_given_up",),
    ),
    Plant(
        "a sign of life each ten seconds",
        "engine/hub.py",
        'PULSE = CONSTANTS["ALIVE"] / 3000',
        'PULSE = CONSTANTS["ALIVE"] / 300',
        (HUB + "test_a_sign_of_life_may_be_late_by_more_than_a_second",),
    ),
    Plant(
        "a subscription is tried without a pause",
        "engine/hub.py",
        "_BACKOFF[min(tries, len(_BACKOFF) - 1)]",
        "0",
        (HUB + "test_the_pauses_between_tries_grow_and_begin_anew_once_it_went_well",),
    ),
    Plant(
        "a dropped lease is not said",
        "engine/keeper.py",
        "            if self._kept.get(token):\n                logger.warning(",
        "            if False:\n                logger.warning(",
        (KEEPER + "test_a_lease_that_nobody_has_is_said_and_forgotten",),
    ),
    Plant(
        "a glance each hour",
        "engine/keeper.py",
        "GLANCE = 60.0",
        "GLANCE = 3600.0",
        (KEEPER + "test_a_lease_that_nobody_has_is_said_and_forgotten",),
    ),
    Plant(
        "a label that is read is as long as it comes",
        "engine/labels.py",
        "return {key: v[:MOST] if isinstance(v, str) else v for key, v in known.items()}",
        "return known",
        (WIRE + "test_labels_are_bounded_on_both_ways",),
    ),
    Plant(
        "a busy loop's time counts",
        "engine/loops.py",
        "late, self._left = now - self._due, self._left - seconds",
        "late, self._left = now - self._due, self._left - seconds - max(0.0, now - self._due)",
        (BATCHING + "test_time_in_which_the_loop_was_blocked_does_not_count",),
    ),
    Plant(
        "an exempt key is paused",
        "engine/marks.py",
        'free = {of for of in "pl" if f"x{of}:{quoted}" in marks}',
        "free = set()",
        (BOOKS + "test_a_key_that_was_taken_out_of_a_mark_is_out_of_that_one_only",),
    ),
    Plant(
        "marks are read on for ever",
        "engine/marks.py",
        "return [policy for policy in known if now - policy.used < IDLE]",
        "return known",
        (BOOKS + "test_reading_ends_some_time_after_the_last_use",),
    ),
    Plant(
        "a child's policy is not listed",
        "engine/names.py",
        "[policy + at] = None",
        "[keys.quoted] = None",
        (BOOKS + "test_a_policy_is_listed_and_its_keys_in_a_list_of_their_own",),
    ),
    Plant(
        "a name in use is not noted again",
        "engine/names.py",
        "            for keys in self._in_use():\n"
        "                if keys.leases not in self.noted:\n"
        "                    self.add(keys)\n",
        "",
        (BOOKS + "test_a_name_in_use_is_written_again_each_minute",),
    ),
    Plant(
        "Sentinel's connections stay at hand",
        "engine/pools.py",
        "most = 0 if isinstance(pool, SentinelConnectionPool) else pool.max_connections // 16",
        "most = pool.max_connections // 16",
        (POOLS + "test_none_of_sentinels_stays_at_hand",),
    ),
    Plant(
        "a BLPOP as long as the socket's timeout",
        "engine/pools.py",
        "limit - _BLPOP_MARGIN if limit > 2 else limit / 2",
        "limit",
        (POOLS + "test_a_wait_ends_before_the_socket_gives_up_and_never_lasts_for_ever",),
    ),
    Plant(
        "a minority's grants stay",
        "engine/quorum/async_server.py",
        "        await self._undo(step, held, votes)\n        reply = self._refused(votes, how)",
        "        reply = self._refused(votes, how)",
        (QUORUM + "test_a_minority_gives_back_what_it_granted_and_nothing_else",),
    ),
    Plant(
        "a vote's own time is not deducted",
        "engine/quorum/async_server.py",
        "if left / 1000 > clock() - sent:",
        "if True:",
        (QUORUM + "test_a_lease_that_the_vote_itself_outlasted_is_no_grant",),
    ),
    Plant(
        "a quorum of all",
        "engine/quorum/members.py",
        "return len(self.aliases) // 2 + 1",
        "return len(self.aliases)",
        (QUORUM + "test_more_than_half_is_a_majority",),
    ),
    Plant(
        "drift is not deducted",
        "engine/quorum/members.py",
        "math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))",
        "int(ms)",
        (QUORUM + "test_servers_are_asked_for_more_than_is_believed",),
    ),
    Plant(
        "a vote has no end",
        "engine/quorum/voting.py",
        "clock() + min(step.timeout, PATIENCE)",
        "clock() + 30.0",
        (QUORUM + "test_a_vote_ends",),
    ),
    Plant(
        "a retired server is never closed",
        "engine/server.py",
        "            on_loop(asyncio.get_running_loop()).left(self)",
        "            pass",
        (WIRE + "test_a_retired_server_is_closed_when_its_last_plan_has_ended",),
    ),
    Plant(
        "changed settings leave connections open",
        "engine/server.py",
        "                former.let_go()\n",
        "                pass\n",
        (WIRE + "test_changed_caches_make_other_servers_and_the_former_let_go",),
    ),
    Plant(
        "a process that ends leaves its share",
        "engine/tally.py",
        "for share in () if self._leaving else self._shares():",
        "for share in self._shares():",
        (BOOKS + "test_a_process_that_ends_takes_its_share_back_and_writes_its_events",),
    ),
    Plant(
        "as many groups as templates",
        "engine/tally.py",
        "if group and ((prefix, group) in sums or len(sums) < MOST_GROUPS):",
        "if group:",
        (BOOKS + "test_there_are_only_so_many_groups",),
    ),
    Plant(
        "uWSGI without threads is not said",
        "engine/threads.py",
        "if uwsgi_runs_threads() is False:",
        "if False:",
        (WIRE + "test_a_uwsgi_without_threads_and_a_late_gevent_are_said_once",),
    ),
    Plant(
        "LOADING is final",
        "engine/wire.py",
        '_BUSY = ("BUSY", "LOADING",',
        '_BUSY = ("BUSY",',
        (WIRE + "test_what_an_error_means_of_a_command_that_was_sent_or_not",),
    ),
    Plant(
        "MASTERDOWN is final",
        "engine/wire.py",
        '"MASTERDOWN", ',
        "",
        (WIRE + "test_what_an_error_means_of_a_command_that_was_sent_or_not",),
    ),
]
