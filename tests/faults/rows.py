"""The one table of faults and of bad input: what is expected, what is done to cause it, and which
tests show it. `test_rows.py` checks that it is whole and that the tests exist; `report.py` runs
them and writes the table into the docs.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """`tests`: node ids without parameters. `why_not`: why a part of it can't be shown here."""

    title: str
    expected: str
    done: str
    tests: tuple[str, ...]
    why_not: str = ""


def at(file: str, *names: str) -> tuple[str, ...]:
    """Node ids of tests in one file below tests/."""
    return tuple(f"tests/{file}.py::{name}" for name in names)


HERE, WAYS, CLOCKS = "faults/test_servers", "faults/test_ways", "faults/test_clocks"
TOLD, ENGINE = "behaviour/test_told", "test_engine_threads"
OLD, PERMITS = "behaviour/test_faults", "behaviour/test_permits"
LOOPS, BUDGETS = "behaviour/test_loops", "behaviour/test_budgets"
SENTINEL, CLUSTER = "topologies/test_sentinel", "topologies/test_cluster"
OUTAGE, VIEWS, SITES = "test_requests_outage", "test_requests_views", "test_requests_servers"

FAULTS: dict[int, Row] = {
    1: Row(
        "reply of acquire lost",
        "asked again with the same token: one grant, one fence",
        "a proxy drops the reply, or cuts the connection instead of it",
        (
            *at(WAYS, "test_row_01_a_lost_reply_costs_a_retry_and_no_second_grant"),
            *at(OLD, "test_a_lost_reply_of_acquire_is_asked_for_again"),
            *at(OLD, "test_a_lost_reply_of_release_is_asked_for_again"),
            *at(OLD, "test_a_waiters_lost_replies_cost_it_neither_place_nor_grant"),
        ),
    ),
    2: Row(
        "request delayed past the caller's budget",
        "Unavailable(maybe_executed=True), and no ghost holder afterwards",
        "a proxy holds the request back until its undo was done",
        at(
            OLD,
            "test_no_reply_at_all_is_unavailable_and_leaves_no_ghost",
            "test_a_request_that_arrives_after_its_undo_takes_nothing",
        ),
    ),
    3: Row(
        "server hangs",
        "every call ends within its budget",
        "SIGSTOP",
        (
            *at(HERE, "test_row_03_nothing_that_asks_takes_longer_than_its_budget"),
            *at(BUDGETS, "test_a_server_that_hangs_takes_no_call_beyond_its_budget"),
        ),
    ),
    4: Row(
        "connection refused",
        "Unavailable at once",
        "a port where nobody listens",
        at(OLD, "test_nothing_listens"),
    ),
    5: Row(
        "kill -9 without persistence",
        "leases are gone, their holders learn it, fences grow",
        "20 leases; SIGKILL, restart",
        (
            *at(HERE, "test_row_05_a_kill_without_a_file_loses_leases_and_no_fence"),
            *at(OLD, "test_a_killed_server_loses_leases_and_fences_grow"),
        ),
    ),
    6: Row(
        "kill -9 with appendonly, everysec",
        "leases and fences survive",
        "20 leases; SIGKILL, restart",
        at(HERE, "test_row_06_a_kill_with_an_append_only_file_loses_nothing"),
        "power loss, which also loses what the kernel had not written yet, is row 7",
    ),
    7: Row(
        "end of the append-only file lost",
        "no fence goes back",
        "20 leases; SIGKILL, 2 %, half or all of the file cut off, restart",
        at(HERE, "test_row_07_a_fence_never_goes_back_when_the_end_of_the_file_is_lost"),
    ),
    8: Row(
        "failover loses a grant that was not copied",
        "a documented window: its holder is told, fences grow",
        "the replica is cut off, its login refused; four grants, then the primary is killed",
        at(SENTINEL, "test_grants_that_were_not_copied_are_lost_and_their_holders_told"),
        "no WAIT is sent after a grant: it would narrow the window, cost every grant a round trip, "
        "and not close it; min-replicas-to-write (row 26) refuses grants while no replica keeps up",
    ),
    9: Row(
        "Sentinel failover",
        "works again after down-after and an election; waiters go on",
        "three sentinels, down-after 1.2 s; SIGSTOP or SIGKILL of the primary under load",
        at(SENTINEL, "test_a_failover_under_load_stops_nobody_for_good"),
    ),
    10: Row(
        "old primary comes back",
        "it is left at once; min-replicas-to-write refuses, fences reject",
        "SIGSTOP, a failover, SIGCONT; min-replicas-to-write 1 with no replica",
        (
            *at(SENTINEL, "test_an_old_primary_that_comes_back_is_not_listened_to"),
            *at(
                HERE,
                "test_row_26_without_enough_replicas_nothing_is_taken_and_a_release_is_pending",
            ),
        ),
        "a client that sees only the old primary of a split network holds there until its lease "
        "ends: a storage that looks at fences is what refuses it",
    ),
    11: Row(
        "READONLY",
        "the new primary is looked for, one grant",
        "SENTINEL FAILOVER: the primary is told REPLICAOF under a client",
        at(SENTINEL, "test_a_demoted_primary_is_left_at_once"),
    ),
    12: Row(
        "waiter blocked while its server is demoted",
        "asks again and keeps its place",
        "the primary is told REPLICAOF, or killed, under a waiter",
        at(
            SENTINEL,
            "test_a_demoted_primary_is_left_at_once",
            "test_a_waiter_keeps_its_place_through_a_failover",
        ),
    ),
    13: Row(
        "wake-up lost",
        "granted within a heartbeat",
        "a waiter that listens to a list nobody writes to, or delivers no message",
        (
            *at(WAYS, "test_row_13_a_lost_wake_up_costs_a_heartbeat"),
            *at(OLD, "test_a_lost_wake_up_costs_a_heartbeat"),
        ),
    ),
    14: Row(
        "Pub/Sub connection killed",
        "subscribed anew, and all its waiters ask first",
        "CLIENT KILL TYPE pubsub under five waiters",
        (
            *at(WAYS, "test_row_14_a_killed_subscription_is_made_again"),
            *at(OLD, "test_a_killed_subscription_is_made_again_and_its_waiters_ask"),
            *at(OLD, "test_a_waiter_rides_out_a_restart_of_its_connections"),
        ),
    ),
    15: Row(
        "500 waiters",
        "as many are woken as permits come free",
        "the server's commandstats around one release of five permits",
        (
            *at(HERE, "test_row_15_of_500_waiters_as_many_are_woken_as_permits_come_free"),
            *at("behaviour/test_storms", "test_a_release_wakes_as_many_as_it_frees"),
        ),
    ),
    16: Row(
        "Cluster slot migrates",
        "MOVED and ASK are followed",
        "SETSLOT and MIGRATE on three primaries under load",
        at(
            CLUSTER,
            "test_slots_migrate_under_load_without_an_error",
            "test_a_waiter_is_granted_after_its_slot_has_moved",
            "test_a_half_moved_slot_is_waited_for",
        ),
    ),
    17: Row(
        "Cluster shard down",
        "its names are unavailable, the others work",
        "SIGSTOP of one of three; where it has a replica, SIGSTOP and SIGKILL under load",
        at(
            CLUSTER,
            "test_a_replica_takes_over_under_load",
            "test_one_stopped_shard_is_unavailable_and_the_others_go_on",
            "test_a_stopped_shard_does_not_cost_the_others_their_leases",
        ),
    ),
    18: Row(
        "CROSSSLOT",
        "can't be: all keys of a name share a slot",
        "names and prefixes with braces, made at random",
        (
            *at("test_protocol_keys", "test_keys_of_a_name_are_in_one_slot"),
            *at("test_protocol_keys", "test_braces_in_a_prefix_do_not_move_the_slot"),
        ),
    ),
    19: Row(
        "NOSCRIPT",
        "loaded again, no error seen",
        "SCRIPT FLUSH before each ask, and in a loop beside pipelines",
        (
            *at(WAYS, "test_row_19_scripts_that_were_flushed_cost_one_more_round_trip"),
            *at(OLD, "test_scripts_that_were_flushed_are_loaded_again"),
        ),
    ),
    20: Row(
        "BUSY",
        "asked again for as long as the budget lasts, then Unavailable",
        "an endless script",
        at(OLD, "test_an_endless_script_makes_it_unavailable_for_as_long"),
    ),
    21: Row(
        "LOADING",
        "Unavailable within the budget; works when it is loaded",
        "a file that is loaded slowly (key-load-delay)",
        at(HERE, "test_row_21_a_server_that_loads_its_file_is_unavailable_within_the_budget"),
    ),
    22: Row(
        "memory full, noeviction",
        "acquire is refused, release works",
        "maxmemory 1",
        (
            *at(HERE, "test_row_22_a_full_memory_refuses_to_take_and_still_releases"),
            *at(OLD, "test_a_full_memory_refuses_to_take_and_still_releases"),
        ),
    ),
    23: Row(
        "evicting policy",
        "the doctor says so",
        "allkeys-random, and memory filled until leases vanish",
        (
            *at(HERE, "test_row_23_an_evicting_server_is_named_by_the_doctor_and_does_evict"),
            *at(
                "test_operators_doctor",
                "test_doctor_rates_the_facts_of_a_server",
            ),
        ),
        "no system check says so: checks never open a connection",
    ),
    24: Row(
        "cache.clear()",
        "holders learn LeaseLost, fences grow",
        "ten renewed leases; clear, FLUSHDB",
        (
            *at(HERE, "test_row_24_a_cleared_cache_is_learnt_of"),
            *at(OLD, "test_a_cleared_cache_is_learnt_of_and_fences_go_on"),
        ),
    ),
    25: Row(
        "NOPERM; wrong password, certificate or database number",
        "the error names the command; told as what it is, not as an outage, until it is mended",
        "ACL SETUSER without it, outside and inside a script; each of the others",
        (
            *at(
                "test_requests_rejected_client",
                "test_rejected_client_is_logged_with_its_cause_and_on_outage_applies",
                "test_rejected_client_is_logged_again_until_the_settings_are_corrected",
                "test_doctor_names_the_cause_when_redis_rejects_the_client",
            ),
            *at(
                OLD,
                "test_a_refused_command_is_named",
                "test_a_refused_command_in_a_script_is_named",
            ),
            *at("test_operators_doctor", "test_doctor_lists_a_denied_command"),
        ),
    ),
    26: Row(
        "NOREPLICAS",
        "refused; a release stays pending and is done later",
        "min-replicas-to-write 1 with no replica",
        at(HERE, "test_row_26_without_enough_replicas_nothing_is_taken_and_a_release_is_pending"),
    ),
    27: Row(
        "server's clock jumps ahead by 60 s",
        "who renews learns of it; fences grow",
        "a shim in the server's process",
        at(CLOCKS, "test_row_27_the_servers_clock_jumps_ahead"),
    ),
    28: Row(
        "server's clock jumps back by 60 s",
        "held over for a lease at the most, not for the jump; fences grow",
        "a shim in the server's process",
        at(
            CLOCKS,
            "test_row_28_the_servers_clock_jumps_back",
            "test_row_28_permits_are_never_given_twice_when_the_clock_goes_to_and_fro",
        ),
    ),
    29: Row(
        "client's clock is off by an hour",
        "no effect",
        "time.time patched",
        at(OLD, "test_the_clients_wall_clock_has_no_say"),
    ),
    30: Row(
        "holder paused past its lease",
        "the next one gets in with a larger fence; the paused one learns it",
        "SIGSTOP of the holder's process",
        at("behaviour/test_processes", "test_a_paused_holder_learns_that_its_time_went_by"),
    ),
    31: Row(
        "holder killed",
        "its permit is back within its lease and one check",
        "SIGKILL of the holder's process",
        (
            *at(WAYS, "test_row_31_a_killed_holders_permit_comes_back_with_its_lease"),
            *at(OLD, "test_a_killed_holders_permit_is_back_within_its_lease"),
        ),
    ),
    32: Row(
        "fork while holding",
        "the child neither renews nor releases",
        "os.fork inside the block, and while another thread uses the pool",
        (
            *at(
                "behaviour/test_processes",
                "test_a_forked_child_neither_renews_nor_releases_its_parents_leases",
            ),
            *at(WAYS, "test_row_32_a_child_forked_while_another_thread_uses_the_pool_goes_on"),
        ),
    ),
    33: Row(
        "keeper dies, or can't renew",
        "lost before the server's expiry; never renewed past max_hold",
        "the thread taken away; every request refused by a proxy",
        (
            *at(
                WAYS,
                "test_row_33_a_lease_that_cannot_be_renewed_is_called_lost_before_the_server_ends_it",
            ),
            *at(
                OLD,
                "test_a_keeper_that_cannot_renew_says_so_before_the_server_gives_it_away",
                "test_a_keeper_that_died_is_replaced",
            ),
            *at(PERMITS, "test_renew_can_be_had_with_a_timeout_and_stops_at_max_hold"),
        ),
    ),
    34: Row(
        "asyncio task cancelled at every await",
        "no holder and no waiter left",
        "cancelled at the k-th await, once and repeatedly, for all k",
        at("behaviour/test_cancellation", "test_cancelled_at_any_await_nothing_is_left"),
    ),
    35: Row(
        "many tasks or greenlets on one thread",
        "a lease each",
        "gather; gevent in a process of its own",
        (
            *at(PERMITS, "test_one_object_serves_many_at_once"),
            *at("behaviour/test_storms", "test_500_tasks_on_one_loop_never_exceed_the_limit"),
            *at("test_locks_waiting", "test_greenlets_exclude_each_other_like_threads"),
        ),
    ),
    36: Row(
        "heads of the queue die or are paused in their wait",
        "the others are delayed once, not for each",
        "SIGKILL and SIGSTOP of several heads",
        at(
            "behaviour/test_queue_deaths",
            "test_the_dead_and_the_paused_hold_up_the_others_for_seconds",
        ),
    ),
    37: Row(
        "quorum: a node down or slow, its clock jumps",
        "elapsed time and drift are deducted; failure is undone on all",
        "five servers: killed, stopped, one's clock moved",
        at(
            "topologies/test_quorum",
            "test_two_of_five_killed_do_not_matter_and_three_do",
            "test_two_that_hang_cost_little_and_keep_nothing",
            "test_safe_while_servers_come_and_go",
            "test_one_servers_clock_jumps_by_a_minute",
            "test_what_is_believed_is_less_than_what_was_asked_for_by_the_drift",
        ),
    ),
    38: Row(
        "pool or maxclients exhausted",
        "waiters never starve the releasers",
        "max_connections=1 with 20 workers; maxclients 4",
        at(
            OLD,
            "test_waiters_never_starve_the_releaser_of_connections",
            "test_a_full_server_says_so_in_time",
        ),
    ),
    39: Row(
        "Redis down under a request limit",
        "open, closed or local holds; one probe at a time, so that requests stay fast",
        "SIGSTOP and kill under load",
        at(
            OUTAGE,
            "test_outage_under_load_neither_lifts_the_limit_nor_delays_requests",
            "test_outage_is_logged_once_when_many_permits_are_held",
            "test_success_from_before_the_failure_does_not_end_the_outage",
            "test_answered_probe_allows_one_trial",
            "test_requests_do_not_ask_a_server_that_is_known_to_be_down",
            "test_on_outage_open_admits_all_requests_and_closed_rejects_all",
            "test_on_outage_local_enforces_the_limit_in_this_process",
        ),
    ),
    40: Row(
        "stream, disconnect, exception in an outer middleware",
        "exactly one release, none early",
        "sockets aborted under gunicorn and uvicorn; a middleware that raises",
        (
            *at(SITES, "test_stream_holds_its_permit_until_its_last_byte_is_sent"),
            *at(SITES, "test_permit_is_released_when_the_client_of_a_stream_disconnects"),
            *at(VIEWS, "test_permit_is_released_when_another_middleware_drops_the_response"),
            *at("test_requests_response", "test_lease_of_a_garbage_collected_response_expires"),
        ),
    ),
    41: Row(
        "two renewals of one lease in flight, answers in either order",
        "belief never ends later than the server's lease; nothing is cut off what was asked for",
        "a proxy keeps a request or an answer back; plain load of twelve threads",
        at(
            "behaviour/test_renewals",
            "test_an_answer_that_comes_late_does_not_undo_a_later_renewal",
            "test_the_keeper_cuts_nothing_off_a_renewal_that_is_not_answered_yet",
            "test_a_renewal_that_reaches_the_server_late_is_believed_as_it_may_be",
            "test_a_lease_that_may_be_over_soon_is_looked_after_soon",
            "test_belief_holds_under_load",
        ),
    ),
    42: Row(
        "a with that ends in another thread or task than it began",
        "gives back what it took, and nothing else",
        "generators run on by a pool, closed by the loop, interleaved over one object",
        at(
            "test_locks_blocks",
            "test_block_in_a_generator_releases_when_another_thread_finishes_it",
            "test_block_in_a_generator_releases_when_another_thread_closes_it",
            "test_interleaved_blocks_release_one_permit_each",
            "test_rlock_is_released_when_its_last_block_ends",
            "test_block_in_an_async_generator_releases_when_the_loop_closes_it",
            "test_async_block_releases_when_it_ends_in_another_task",
        ),
    ),
    43: Row(
        "a thread can't be started",
        "the call goes on or fails; the next use starts it; nothing is believed beyond its time",
        "Thread.start that raises; a real limit of memory for its stack, then lifted",
        (
            *at(
                "test_engine_keeper",
                "test_in_a_process_without_room_for_threads_the_next_use_starts_the_keeper",
                "test_a_lease_unrenewed_for_want_of_threads_is_believed_in_no_longer_than_it_is",
                "test_a_holder_that_checks_its_lease_has_the_keeper_started",
                "test_without_a_thread_of_its_own_a_renewal_is_sent_by_the_one_that_watches",
            ),
            *at(
                ENGINE,
                "test_a_thread_that_could_not_start_is_started_by_the_next_work",
                "test_receivers_that_got_no_thread_run_when_one_can_be_started",
                "test_a_quorums_loop_that_got_no_thread_is_a_failure_and_the_next_step_starts_it",
            ),
        ),
    ),
    44: Row(
        "memory full while leases are held",
        "held ones are renewed and given back; waiters are served; newcomers are refused",
        "maxmemory 1; every verb; every order of messages in the model",
        (
            *at(HERE, "test_row_44_with_a_full_memory_what_is_held_stays_and_is_handed_over"),
            *at(
                "test_protocol_memory",
                "test_full_memory_allows_a_renewal",
                "test_full_memory_allows_confirm_adopt_and_share",
                "test_full_memory_allows_a_release_with_its_count_and_handoff",
                "test_full_memory_allows_an_undo_with_a_tombstone",
                "test_full_memory_allows_a_waiter_to_keep_its_place_and_be_granted",
                "test_full_memory_denies_a_new_name_and_stores_nothing",
            ),
        ),
    ),
    45: Row(
        "1,000 and 10,000 waiters of one process killed",
        "the next live one is in within 3 and 6 s; waiters of a live process keep their places",
        "SIGKILL of a process with so many tasks that wait, ahead of another's",
        at(
            HERE,
            "test_row_45_the_waiters_of_a_killed_process_are_passed_over_together",
            "test_row_45_the_waiters_of_a_live_process_keep_their_places",
        ),
    ),
    46: Row(
        "path to Redis accepts and answers nothing",
        "told before anybody else gets in; what else is kept is not late",
        "a proxy that swallows all, timeouts of 5 s; another alias hung; SIGSTOP of a shard and of "
        "three of a quorum's five",
        (
            *at(
                TOLD,
                "test_when_the_path_answers_nothing_it_is_told_before_another_has_it",
                "test_another_alias_that_hangs_makes_nothing_late",
                "test_a_receiver_that_takes_its_time_makes_no_other_late",
                "test_the_keeper_never_waits_for_what_renews",
            ),
            *at(
                "topologies/test_told",
                "test_a_shard_that_hangs_is_told_in_time_and_makes_no_other_late",
                "test_a_quorum_whose_majority_hangs_is_told_in_time",
                "test_a_quorum_of_which_two_hang_keeps_its_lease",
            ),
        ),
    ),
    47: Row(
        "pool that waits for a free connection, exhausted",
        "every call within its budget; a release goes through",
        "BlockingConnectionPool and a class of the project's own, with nothing left to give",
        at(
            "behaviour/test_budgets",
            "test_a_pool_that_waits_is_not_waited_for",
            "test_an_exhausted_plain_pool_holds_nobody_up",
            "test_an_async_pool_that_waits_takes_no_call_beyond_its_budget",
            "test_a_server_that_hangs_takes_no_call_beyond_its_budget",
            "test_a_path_that_swallows_takes_no_call_beyond_its_budget",
        ),
    ),
    48: Row(
        "receiver of a loss raises SystemExit",
        "it ends itself only",
        "SystemExit, KeyboardInterrupt and others from on_lost and from the signal",
        (
            *at(
                TOLD,
                "test_a_receiver_that_ends_its_thread_ends_nothing_else",
                "test_a_signals_receiver_that_ends_its_thread_ends_nothing_else",
            ),
            *at(ENGINE, "test_calls_sent_together_run_in_their_order_whatever_becomes_of_each"),
        ),
    ),
    50: Row(
        "an exception out of a signal handler, or a destructor, in the middle of a call",
        "nobody hangs beyond their time; no permit is gone for longer than a lease",
        "a tracer that raises, or calls again, at each bytecode; setitimer",
        (
            *at(
                ENGINE,
                "test_a_caller_interrupted_at_any_bytecode_leaves_nothing_that_others_wait_for",
                "test_a_executor_interrupted_at_any_bytecode_still_delivers",
                "test_an_interrupted_step_on_the_quorums_loop_holds_up_no_other",
                "test_a_waiter_interrupted_at_any_line_of_ours_hangs_no_other",
                "test_a_storm_of_signals_leaves_nobody_hanging",
                "test_a_destructor_may_send_what_its_own_thread_is_just_sending",
            ),
            *at(
                "test_locks_interrupted",
                "test_interrupted_acquire_leaves_no_renewed_lease",
            ),
        ),
    ),
    51: Row(
        "event loop that ends while tasks are inside",
        "back at once, nothing pending, no permit left behind",
        "asyncio.run and uvloop.run, 30 busy tasks each; time limits, shields, groups; SIGSTOP",
        at(
            LOOPS,
            "test_a_loop_ends_at_once_while_tasks_are_busy",
            "test_a_loop_ends_within_seconds_though_redis_is_silent",
        ),
    ),
    52: Row(
        "event loop closed under its tasks, settings changed under a loop",
        "its sockets and the loop are collected; its permits expire with their leases",
        "loop.close() with holders and waiters; override_settings under a waiter",
        at(
            LOOPS,
            "test_closed_loop_and_its_sockets_are_garbage_collected",
            "test_changed_settings_leave_nothing_on_a_living_loop",
            "test_a_waiter_outlives_a_change_of_settings",
        ),
    ),
    53: Row(
        "process so busy that it reads replies late",
        "they are heard: no outage is told, and the limit holds",
        "a loop blocked for 0.7 s at a time, a thread that keeps the interpreter; two processes",
        (
            *at(
                "behaviour/test_busy",
                "test_a_loop_that_was_blocked_hears_what_came_meanwhile",
                "test_a_loop_may_be_blocked_while_it_connects",
                "test_threads_that_wait_for_the_interpreter_hear_what_came_meanwhile",
                "test_requests_of_a_busy_worker_are_no_outage",
                "test_busy_processes_never_exceed_the_limit_together",
            ),
            *at("test_engine_batching", "test_patience_ends_when_its_time_is_over"),
        ),
    ),
    54: Row(
        "ATOMIC_REQUESTS around a plain lock",
        "said before harm; the safe forms sell exactly what there is",
        "PostgreSQL, 15 buyers, 8 tickets",
        (
            *at(
                "test_locks_postgres",
                "test_plain_lock_oversells_and_logs_one_warning",
                "test_atomic_with_atomic_requests_raises_and_names_the_remedy",
                "test_safe_ways_sell_exactly_the_tickets",
            ),
            *at("test_checks", "test_check_names_each_mistake_and_no_other"),
        ),
    ),
    55: Row(
        "an operator's mark under a flood of fresh keys",
        "no key without expiry, no renewal late; in force for every key, in every process",
        "thousands of keys of a paused policy; marks that can't be read; a second process",
        (
            *at(
                "test_overrides",
                "test_paused_policy_rejects_new_keys_and_leaves_nothing_behind",
                "test_override_applies_in_other_processes_until_it_is_removed",
                "test_many_new_keys_of_a_paused_policy_delay_no_renewal",
                "test_unreadable_overrides_stay_in_force_and_are_logged_once",
            ),
            *at(
                "test_statistics",
                "test_many_acquires_of_many_keys_send_few_scripts_and_use_bounded_memory",
            ),
        ),
    ),
    58: Row(
        "thousands of leases in one process",
        "all are kept, and a round has no more than a batch",
        "10,000 leases of 30 s and 2,000 of 3 s on a clock of the test's own",
        at(
            "test_engine_keeper",
            "test_the_work_of_a_minute_grows_with_renewals_and_not_with_leases_times_looks",
            "test_a_round_trip_has_no_more_than_a_batch_of_renewals",
        ),
        "CPU time is no test's to judge: benchmarks/RESULTS.md has it, by make bench",
    ),
}

MISUSE, KEYS, SCRIPTS = "behaviour/test_misuse", "test_protocol_keys", "test_protocol_scripts"
PARSING, GARBAGE, THREATS = "fuzz/test_parsing", "fuzz/test_garbage", "faults/test_threats"
POLICY, ACTIONS, ACT = "test_requests_policy", "test_admin_actions", "test_command_act"

INPUT: dict[str, Row] = {
    "name that is empty or unprintable": Row(
        "name empty, no str, NUL, newline, ANSI codes, lone surrogate",
        "ValueError or TypeError before anything is sent; shown escaped",
        "such names, and any at random",
        (
            *at(MISUSE, "test_a_name_that_cannot_be_shown_or_stored"),
            *at(PARSING, "test_a_name_is_usable_or_refused"),
            *at("test_command_status", "test_control_characters_are_shown_and_not_sent"),
            *at(THREATS, "test_nobody_writes_lines_into_the_log"),
        ),
    ),
    "path, or a server's words, with line breaks and ANSI codes": Row(
        "path of a request, text of an error, with line breaks and ANSI codes",
        "one line per message, escaped",
        "each, refused and let in",
        at("test_logs", "test_path_of_a_rejected_request_adds_no_log_line"),
    ),
    "client that reads slowly": Row(
        "client that reads a byte now and then",
        "its stream ends with its permit, before the next one gets in; one line in the log",
        "a socket with a small buffer, under gunicorn and uvicorn",
        at(SITES, "test_slowly_read_stream_ends_with_its_lease"),
    ),
    "name with any other character": Row(
        "name with braces, colon, spaces, unicode; over-long",
        "works, one slot, meets no other; over-long: ValueError, request keys digested",
        "such names, and any at random",
        (
            *at(MISUSE, "test_names_of_all_sorts_work_and_do_not_meet"),
            *at(KEYS, "test_two_names_share_no_key", "test_keys_of_a_name_are_in_one_slot"),
            *at(POLICY, "test_invalid_primary_key_is_digested"),
        ),
    ),
    "NFC and NFD": Row(
        "two forms of one letter",
        "two names",
        "both forms",
        at(MISUSE, "test_forms_of_one_letter_are_two_names"),
    ),
    "limit": Row(
        "limit 0, negative, float, NaN, bool, str",
        "ValueError or TypeError",
        "each, and any JSON at random",
        (
            *at(MISUSE, "test_a_limit_that_is_no_count"),
            *at(PARSING, "test_options_are_taken_or_refused_before_anything_is_sent"),
        ),
    ),
    "timeout and blocking_timeout": Row(
        "0, negative, NaN, 1e30, str",
        "0 waits not at all; else ValueError or TypeError",
        "each, and any JSON at random",
        at(
            MISUSE,
            "test_seconds_that_are_none",
            "test_a_wait_of_no_seconds",
            "test_a_wait_of_zero_tries_once",
            "test_an_endless_wait_can_be_said",
        ),
    ),
    "decorators": Row(
        "without parentheses, on async, class, method, helper",
        "works, or one clear error",
        "each",
        (
            *at("test_locks_synchronized", "test_synchronized_rejects_generators_and_classes"),
            *at("test_locks_synchronized", "test_synchronized_decorates_every_kind_of_method"),
            *at(VIEWS, "test_decorator_on_anything_but_a_view_raises_type_error"),
            *at(VIEWS, "test_unnamed_semaphore_is_named_after_its_view"),
        ),
    ),
    "limits that disagree": Row(
        "limit lowered while held; callers that disagree",
        "nobody is thrown out; the caller's rules unless an operator set one; told",
        "both",
        (
            *at(PERMITS, "test_the_callers_limit_rules_and_nobody_is_thrown_out"),
            *at(SCRIPTS, "test_acquire_stores_the_limit_of_a_conflicting_caller"),
            *at(
                "test_operators_actions",
                "test_resize_overrides_the_limit_of_callers_and_keeps_the_holders",
            ),
        ),
    ),
    "foreign value": Row(
        "another program's value under our key",
        "an error that names the key; left alone",
        "values of each kind under each key; garbage in our own",
        (
            *at(OLD, "test_another_programs_value_is_named_and_left_alone"),
            *at(SCRIPTS, "test_foreign_value_is_neither_used_nor_deleted"),
            *at(GARBAGE, "test_keys_of_another_kind_are_named_and_left_alone"),
            *at(GARBAGE, "test_inspection_of_garbage", "test_a_registry_of_garbage"),
        ),
    ),
    "token": Row(
        "token guessed, replayed, used after release",
        "refused; never shown whole",
        "forged handles; logs, errors, pages and repr searched for tokens",
        (
            *at(MISUSE, "test_a_forged_handle_gets_nothing"),
            *at("behaviour/test_processes", "test_a_handle_works_once_it_is_released_no_more"),
            *at(PERMITS, "test_a_lease_is_given_back_once"),
            *at(THREATS, "test_a_token_is_never_shown_whole", "test_a_token_cannot_be_guessed"),
            *at("test_admin_pages", "test_name_page_shows_holders_but_not_their_tokens"),
        ),
    ),
    "HTML in the admin": Row(
        "name, label, user agent with HTML",
        "escaped",
        "each, on every page",
        at("test_admin_pages", "test_html_in_names_and_labels_is_escaped"),
    ),
    "admin actions": Row(
        "by GET, without CSRF, by view-only staff, outside our prefix",
        "405, 403, 403, refused; every action has a LogEntry",
        "each",
        at(
            ACTIONS,
            "test_action_is_not_carried_out_by_get",
            "test_action_needs_the_csrf_token_and_the_permission",
            "test_each_action_is_logged_with_user_and_reason",
        ),
    ),
    "patterns": Row(
        "locks clear 'x[1]' or '*'",
        "literal unless --pattern; asks first, --dry-run shows",
        "each",
        at(
            ACT,
            "test_a_name_is_literal_unless_it_is_said_to_be_a_pattern",
            "test_clear_shows_whom_and_asks_first",
            "test_dry_run_only_shows",
        ),
    ),
    "clear races a new holder": Row(
        "clear while the holder changes",
        "acts on the one that was shown",
        "the holder changes in between",
        (
            *at(ACT, "test_clear_acts_on_the_holder_shown_even_if_a_newcomer_took_its_place"),
            *at(
                "test_operators_actions",
                "test_clear_removes_only_the_shown_holder_not_a_newcomer",
            ),
        ),
    ),
    "keys without bound": Row(
        "names made of what users send",
        "all expire, the registry is trimmed, refusals leave nothing",
        "many names, and refusals",
        (
            *at(SCRIPTS, "test_statistics_expire"),
            *at(VIEWS, "test_process_writes_statistics_for_a_bounded_number_of_keys"),
            *at(SCRIPTS, "test_released_name_has_one_key_that_expires"),
            *at("test_operators_status", "test_registry_drops_names_that_are_old_or_too_many"),
        ),
    ),
    "X-Forwarded-For": Row(
        "forged",
        "REMOTE_ADDR unless proxies are trusted; IPv6 by /64",
        "forged headers, and any at random",
        (
            *at(POLICY, "test_address_is_read_only_from_trusted_proxies"),
            *at(POLICY, "test_addresses_of_one_network_have_the_same_digest"),
            *at(PARSING, "test_whatever_is_forwarded_becomes_one_key"),
            *at(PARSING, "test_what_lies_left_of_the_trusted_proxies_changes_nothing"),
        ),
    ),
    "user ids and addresses in keys": Row(
        "ids, addresses and free-form keys in key names",
        "addresses and free-form keys digested with the secret key, user pk plain",
        "each",
        (
            *at(POLICY, "test_primary_key_is_not_digested"),
            *at(POLICY, "test_digest_uses_the_old_secret_key_while_it_is_a_fallback"),
            *at("test_command_status", "test_a_policy_shows_all_its_keys_and_one_by_key"),
        ),
    ),
    "refusals": Row(
        "body of a 503 or 429",
        "no names of holders, hosts or tokens",
        "both, in each form",
        at(VIEWS, "test_rejection_contains_no_token_hostname_or_fence"),
    ),
    "password": Row(
        "password in a Redis URL",
        "in no error, status or log",
        "a wrong one, and a server that is down",
        (
            *at(OLD, "test_a_wrong_password_is_no_secret_told"),
            *at("test_operators_status", "test_unavailable_does_not_contain_the_password"),
        ),
    ),
    "metadata": Row(
        "labels",
        "bounded JSON, never pickle",
        "any text at random; the package's imports",
        (
            *at(PARSING, "test_any_text_as_a_label", "test_a_label_that_is_deep"),
            *at(PARSING, "test_a_label_comes_back_bounded_and_on_one_line"),
            *at(THREATS, "test_nothing_is_unpickled_or_evaluated"),
        ),
    ),
}


def every() -> dict[str, Row]:
    """All rows by what the docs call them."""
    return {**{str(number): row for number, row in FAULTS.items()}, **INPUT}
