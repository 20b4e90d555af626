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
        "return self.until - self._course.doubt if not self.over else math.inf",
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
        "a batch is never split",
        "engine/batching.py",
        "        if split and count >= MANY:\n            count //= 2\n",
        "",
        (BATCHING + "test_many_are_two_batches",),
    ),
    Plant(
        "a batch waits for its most patient step",
        "engine/batching.py",
        "Patience(min(order.step.timeout for order in orders))",
        "Patience(max(order.step.timeout for order in orders))",
        (BATCHING + "test_the_least_patient_of_a_batch_rules",),
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
        "a whole name counts as no permit",
        "engine/clerk.py",
        "lease.permits or 1",
        "lease.permits",
        (BOOKS + "test_shares_are_the_permits_held_and_the_waiters",),
    ),
    Plant(
        "ASYNC_CLIENT is not heeded",
        "engine/clients.py",
        "    if path:\n        return import_string",
        "    if False:\n        return import_string",
        (WIRE + "test_the_async_client_is_the_projects_own_where_the_settings_name_one",),
    ),
    Plant(
        "max_connections are the async client's too",
        "engine/clients.py",
        '| {"max_connections", "timeout", "queue_class"}',
        '| {"timeout", "queue_class"}',
        (WIRE + "test_an_async_client_neither_retries_by_itself_nor_takes_the_pools_options",),
    ),
    Plant(
        "ASK without ASKING (async)",
        "engine/cluster/async_server.py",
        '            pipeline.execute_command("ASKING")\n',
        '            pipeline.execute_command("PING")\n',
        (CLUSTER + "test_asking_stands_before_each_command_in_async_code",),
    ),
    Plant(
        "a half moved slot's answer is final",
        "engine/cluster/routing.py",
        '"non local key" in str(answer.cause)',
        '"none" in str(answer.cause)',
        (CLUSTER + "test_a_script_that_met_a_half_moved_slot_may_have_run",),
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
        "a silent node is not suspected",
        "engine/cluster/topology.py",
        "        self._suspects[address] = clock() + SUSPECT\n        if",
        "        if",
        (CLUSTER + "test_a_silent_node_is_suspected",),
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
        "a RESP2 hash is a list",
        "engine/commands.py",
        'if words[0] == "HGETALL" and isinstance(found, list):',
        "if False:",
        (WIRE + "test_a_hash_is_a_dict_in_either_protocol",),
    ),
    Plant(
        "a number of another program's is believed",
        "engine/commands.py",
        "return value if abs(value) < 2**63 else other",
        "return value",
        (WIRE + "test_a_number_that_cannot_be_ours_is_another",),
    ),
    Plant(
        "a stuck courier is not looked after",
        "engine/courier.py",
        "        if self.stuck:\n            self._start()\n        return",
        "        return",
        (WIRE + "test_a_courier_without_a_thread_is_looked_after",),
    ),
    Plant(
        "a cancelled release goes on at once",
        "engine/drivers.py",
        "            if to_the_end:\n                doing = Outlasting",
        "            if False:\n                doing = Outlasting",
        (DRIVERS + "test_to_the_end_a_cancellation_waits_and_then_goes_on",),
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
        "an early message is dropped",
        "engine/hub.py",
        "            self._early[token] = element, clock() + _EARLY\n"
        "            self._early.move_to_end(token)\n",
        "            return\n",
        (BATCHING + "test_a_message_before_its_waiter_is_kept_for_it",),
    ),
    Plant(
        "after a resubscribe nobody asks again",
        "engine/hub.py",
        "        for token in list(self._waiters):\n            self._wake(token, None, clock())\n",
        "        pass\n",
        (HUB + "test_all_are_woken_at_once_when_it_subscribed_anew",),
    ),
    Plant(
        "a lease that fails stops the watch",
        "engine/keeper.py",
        '            logger.exception("the keeper of %r met an error and goes on", '
        "self._alias)\n"
        "            self.forget(token)\n"
        "            return None",
        "            raise",
        (KEEPER + "test_a_lease_that_fails_stops_no_other",),
    ),
    Plant(
        "a dropped lease is not said",
        "engine/keeper.py",
        "        if keys is not None:\n            said =",
        "        if False:\n            said =",
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
        "labels with a request's id are remembered",
        "engine/labels.py",
        "    if request:  # differs",
        "    if False:  # differs",
        (WIRE + "test_the_label_of_a_request_with_an_id_is_not_remembered",),
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
        "a broken connection is kept",
        "engine/pools.py",
        "            self.connection.disconnect()\n        self._lender.release",
        "            pass\n        self._lender.release",
        (POOLS + "test_a_connection_goes_back_open_when_all_was_read_of_it",),
    ),
    Plant(
        "stale connections are never given back",
        "engine/pools.py",
        "        if clock() - since < FRESH:\n"
        "            return connection, within\n"
        "        self.give_back()\n"
        "        self.pool.release(connection)\n"
        "        return self._fetch(within)",
        "        return connection, within",
        (POOLS + "test_one_that_is_no_longer_fresh_goes_back_with_all_others_and_another_comes",),
    ),
    Plant(
        "a quorum of two",
        "engine/quorum/__init__.py",
        "if len(using) < 3:",
        "if len(using) < 2:",
        (QUORUM + "test_a_quorum_is_of_three_servers_at_the_least_each_named_once",),
    ),
    Plant(
        "belief ends with the longest lease of a quorum",
        "engine/quorum/async_server.py",
        "sorted(map(deducted, leases), reverse=True)[self.quorum.need - 1]",
        "sorted(map(deducted, leases), reverse=True)[0]",
        (QUORUM + "test_belief_ends_with_the_first_of_the_longest_lived_majority",),
    ),
    Plant(
        "a vote's own time is not deducted",
        "engine/quorum/async_server.py",
        "if left / 1000 > clock() - sent:",
        "if True:",
        (QUORUM + "test_a_lease_that_the_vote_itself_outlasted_is_no_grant",),
    ),
    Plant(
        "a minority's grants stay",
        "engine/quorum/async_server.py",
        "        await self._undo(step, held, votes)\n        reply = self._refused(votes, how)",
        "        reply = self._refused(votes, how)",
        (QUORUM + "test_a_minority_gives_back_what_it_granted_and_nothing_else",),
    ),
    Plant(
        "a late grant of a quorum is not renewed",
        "engine/quorum/async_server.py",
        "                held.fences[alias] = answer.reply[1]\n",
        "                pass\n",
        (QUORUM + "test_a_grant_after_the_vote_is_renewed_and_released_too",),
    ),
    Plant(
        "half of a quorum is a majority",
        "engine/quorum/members.py",
        "return len(self.aliases) // 2 + 1",
        "return len(self.aliases) // 2",
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
        "CACHES leave the servers",
        "engine/server.py",
        'if setting in ("CACHES", conf.SETTING):',
        "if setting in (conf.SETTING,):",
        (WIRE + "test_changed_caches_make_other_servers_and_the_former_let_go",),
    ),
    Plant(
        "a retired server is closed under its plans",
        "engine/server.py",
        "if self.retired and not self.plans:",
        "if self.retired:",
        (WIRE + "test_a_retired_server_is_closed_when_its_last_plan_has_ended",),
    ),
    Plant(
        "a duration of 1024 ms is below 1024",
        "engine/tally.py",
        "return ms.bit_length()",
        "return max(0, ms - 1).bit_length()",
        (BOOKS + "test_counts_carry_their_milliseconds_and_durations_their_bucket",),
    ),
    Plant(
        "a process that ends leaves its share",
        "engine/tally.py",
        "for share in () if self._leaving else self._shares():",
        "for share in self._shares():",
        (BOOKS + "test_a_process_that_ends_takes_its_share_back_and_writes_its_events",),
    ),
    Plant(
        "gevent that came late is not said",
        "engine/threads.py",
        "    if patched_late():\n",
        "    if False:\n",
        (WIRE + "test_a_uwsgi_without_threads_and_a_late_gevent_are_said_once",),
    ),
    Plant(
        "uWSGI without threads is not said",
        "engine/threads.py",
        "if uwsgi_runs_threads() is False:",
        "if False:",
        (WIRE + "test_a_uwsgi_without_threads_and_a_late_gevent_are_said_once",),
    ),
    Plant(
        "max clients is final",
        "engine/wire.py",
        '            return "busy"\n        return "unanswered" if sent',
        '            return "final"\n        return "unanswered" if sent',
        (WIRE + "test_what_an_error_means_of_a_command_that_was_sent_or_not",),
    ),
    Plant(
        "LOADING is final",
        "engine/wire.py",
        '_BUSY = ("BUSY", "LOADING",',
        '_BUSY = ("BUSY",',
        (WIRE + "test_what_an_error_means_of_a_command_that_was_sent_or_not",),
    ),
]
