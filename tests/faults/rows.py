"""The tables of faults and of bad input: what is expected, what causes it, which tests prove it.

`test_rows.py` checks that the tables are complete and that the tests exist. `report.py` runs the
tests and writes the tables into RESULTS.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """`tests`: node ids without parameters. `why_not`: why tests can't prove a part of the row."""

    title: str
    expected: str
    done: str
    tests: tuple[str, ...]
    why_not: str = ""


def at(file: str, *names: str) -> tuple[str, ...]:
    """Return the node ids of tests in one file below tests/."""
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
        "the request is sent again with the same token: one grant, one fence",
        "a proxy drops the reply, or closes the connection instead",
        (
            *at(WAYS, "test_row_01_lost_reply_causes_a_retry_and_no_second_grant"),
            *at(OLD, "test_acquire_is_sent_again_when_its_reply_is_lost"),
            *at(OLD, "test_release_is_sent_again_when_its_reply_is_lost"),
            *at(OLD, "test_waiter_keeps_its_place_and_grant_when_replies_are_lost"),
        ),
    ),
    2: Row(
        "request delayed past the caller's time limit",
        "Unavailable(maybe_executed=True), and no orphaned permit afterwards",
        "a proxy delays the request until after its undo",
        at(
            OLD,
            "test_acquire_without_any_reply_raises_unavailable_and_leaves_no_holder",
            "test_acquire_that_arrives_after_its_undo_takes_no_permit",
        ),
    ),
    3: Row(
        "server hangs",
        "every call ends within its time limit",
        "SIGSTOP",
        (
            *at(HERE, "test_row_03_calls_end_within_their_time_limit_while_the_server_hangs"),
            *at(BUDGETS, "test_call_ends_within_its_time_limit_when_the_server_hangs"),
        ),
    ),
    4: Row(
        "connection refused",
        "Unavailable at once",
        "a port without a server",
        at(OLD, "test_acquire_raises_unavailable_when_the_port_is_closed"),
    ),
    5: Row(
        "kill -9 without persistence",
        "leases are lost, their holders are notified, fences grow",
        "20 leases; SIGKILL, restart",
        (
            *at(HERE, "test_row_05_kill_without_persistence_loses_leases_and_fences_grow"),
            *at(OLD, "test_restart_without_persistence_loses_leases_and_fences_grow"),
        ),
    ),
    6: Row(
        "kill -9 with appendonly, everysec",
        "leases and fences survive",
        "20 leases; SIGKILL, restart",
        at(HERE, "test_row_06_kill_with_an_append_only_file_loses_no_lease"),
        "row 7 stands for a power loss, which also loses data that the kernel had not written",
    ),
    7: Row(
        "end of the append-only file lost",
        "no fence is granted twice",
        "20 leases; SIGKILL, truncation of the file by 2 %, half, or all, restart",
        at(HERE, "test_row_07_fences_grow_when_the_end_of_the_append_only_file_is_lost"),
    ),
    8: Row(
        "failover loses a grant that was not replicated",
        "documented: its holder is notified, fences grow",
        "the replica can't log in to the primary; four grants, then SIGKILL of the primary",
        at(SENTINEL, "test_failover_loses_uncopied_grants_and_calls_on_lost"),
        "the library sends no WAIT after a grant: it would cost a round trip per grant, and could "
        "not rule the loss out; min-replicas-to-write (row 26) rejects grants while no replica "
        "keeps up",
    ),
    9: Row(
        "Sentinel failover",
        "names can be acquired again after down-after and an election; waiters continue",
        "three sentinels, down-after 1.2 s; SIGSTOP or SIGKILL of the primary under load",
        at(SENTINEL, "test_all_names_are_granted_again_after_a_failover_under_load"),
    ),
    10: Row(
        "old primary returns",
        "clients leave it at once; min-replicas-to-write and fences reject its grants",
        "SIGSTOP, a failover, SIGCONT; min-replicas-to-write 1 with no replica",
        (
            *at(SENTINEL, "test_client_ignores_an_old_primary_that_returns"),
            *at(
                HERE,
                "test_row_26_missing_replicas_reject_acquire_and_delay_the_release",
            ),
        ),
        "in a split network, a client that reaches only the old primary holds its lease there "
        "until it expires: a storage that checks fences rejects its writes",
    ),
    11: Row(
        "READONLY",
        "the client looks up the new primary; one grant",
        "SENTINEL FAILOVER, which sends REPLICAOF to the primary",
        at(SENTINEL, "test_client_leaves_a_demoted_primary_at_once"),
    ),
    12: Row(
        "waiter blocked while its server is demoted",
        "the waiter asks again and keeps its place",
        "REPLICAOF or SIGKILL of the primary while a caller waits",
        at(
            SENTINEL,
            "test_client_leaves_a_demoted_primary_at_once",
            "test_waiter_keeps_its_place_through_a_failover",
        ),
    ),
    13: Row(
        "wake-up lost",
        "the waiter is granted within a heartbeat",
        "the waiter reads another list, or discards published messages",
        (
            *at(WAYS, "test_row_13_lost_wake_up_delays_the_waiter_by_a_heartbeat"),
            *at(OLD, "test_waiter_is_granted_within_a_heartbeat_when_its_wake_up_is_lost"),
        ),
    ),
    14: Row(
        "Pub/Sub connection killed",
        "the client subscribes again, and all its waiters ask again",
        "CLIENT KILL TYPE pubsub while five callers wait",
        (
            *at(WAYS, "test_row_14_waiters_of_a_killed_subscription_are_granted"),
            *at(OLD, "test_waiters_of_a_killed_subscription_are_granted"),
            *at(OLD, "test_waiter_is_granted_after_its_connections_were_killed"),
        ),
    ),
    15: Row(
        "500 waiters",
        "a release wakes one waiter per freed permit",
        "the server's commandstats around one release of five permits",
        (
            *at(HERE, "test_row_15_release_wakes_one_of_500_waiters_per_freed_permit"),
            *at("behaviour/test_storms", "test_release_wakes_one_waiter_per_freed_permit"),
        ),
    ),
    16: Row(
        "Cluster slot migrates",
        "clients follow MOVED and ASK",
        "SETSLOT and MIGRATE on three primaries under load",
        at(
            CLUSTER,
            "test_slots_migrate_under_load_without_an_error",
            "test_waiter_is_granted_after_its_slot_has_moved",
            "test_calls_wait_while_their_slot_is_half_moved",
        ),
    ),
    17: Row(
        "Cluster shard down",
        "its names are unavailable, all others work",
        "SIGSTOP of one of three; with a replica also SIGSTOP and SIGKILL under load",
        at(
            CLUSTER,
            "test_replica_takes_over_under_load",
            "test_stopped_shard_is_unavailable_and_the_others_work",
            "test_leases_on_other_shards_are_kept_when_a_shard_stops",
        ),
    ),
    18: Row(
        "CROSSSLOT",
        "impossible: all keys of a name are in one slot",
        "random names and prefixes with braces",
        (
            *at("test_protocol_keys", "test_keys_of_a_name_are_in_one_slot"),
            *at("test_protocol_keys", "test_braces_in_a_prefix_do_not_move_the_slot"),
        ),
    ),
    19: Row(
        "NOSCRIPT",
        "the scripts are loaded again, without an error",
        "SCRIPT FLUSH before each request, and in a loop beside pipelines",
        (
            *at(WAYS, "test_row_19_flushed_scripts_cost_one_more_round_trip"),
            *at(OLD, "test_flushed_scripts_are_loaded_again"),
        ),
    ),
    20: Row(
        "BUSY",
        "the request is sent again until its time limit, then Unavailable",
        "an endless script",
        at(OLD, "test_acquire_raises_unavailable_while_an_endless_script_runs"),
    ),
    21: Row(
        "LOADING",
        "Unavailable within the time limit; works once the file is loaded",
        "a file that the server loads slowly (key-load-delay)",
        at(HERE, "test_row_21_acquire_raises_unavailable_in_time_while_the_server_loads"),
    ),
    22: Row(
        "memory full, noeviction",
        "acquire is rejected, release works",
        "maxmemory 1",
        (
            *at(HERE, "test_row_22_full_memory_rejects_acquire_and_allows_release"),
            *at(OLD, "test_full_memory_rejects_acquire_and_allows_release"),
        ),
    ),
    23: Row(
        "evicting policy",
        "the doctor reports it",
        "allkeys-random, and memory filled until leases are evicted",
        (
            *at(HERE, "test_row_23_evicting_server_loses_leases_and_is_a_doctor_error"),
            *at(
                "test_operators_doctor",
                "test_doctor_rates_the_facts_of_a_server",
            ),
        ),
        "no system check reports it: checks never open a connection",
    ),
    24: Row(
        "cache.clear()",
        "holders are notified, fences grow",
        "ten renewed leases; clear, FLUSHDB",
        (
            *at(HERE, "test_row_24_cleared_cache_calls_on_lost_and_fences_grow"),
            *at(OLD, "test_cleared_cache_calls_on_lost_and_fences_grow"),
        ),
    ),
    25: Row(
        "NOPERM; wrong password, certificate, or database number",
        "the error names the command; logged as a configuration error, not as an outage",
        "ACL SETUSER without a command, outside and inside a script; each of the others",
        (
            *at(
                "test_requests_rejected_client",
                "test_rejected_client_is_logged_with_its_cause_and_on_outage_applies",
                "test_rejected_client_is_logged_again_until_the_settings_are_corrected",
                "test_doctor_names_the_cause_when_redis_rejects_the_client",
            ),
            *at(
                OLD,
                "test_unavailable_names_the_denied_command",
            ),
            *at("test_operators_doctor", "test_doctor_lists_a_denied_command"),
        ),
    ),
    26: Row(
        "NOREPLICAS",
        "acquire is rejected; a release is pending and is done later",
        "min-replicas-to-write 1 with no replica",
        at(HERE, "test_row_26_missing_replicas_reject_acquire_and_delay_the_release"),
    ),
    27: Row(
        "server's clock jumps ahead by 60 s",
        "holders of renewed leases are notified; fences grow",
        "a shim in the server's process",
        at(CLOCKS, "test_row_27_clock_jump_ahead_ends_leases_and_calls_on_lost"),
    ),
    28: Row(
        "server's clock jumps back by 60 s",
        "a dead lease lasts at most one lease duration longer, not 60 s; fences grow",
        "a shim in the server's process",
        at(
            CLOCKS,
            "test_row_28_clock_jump_back_extends_a_dead_lease_by_at_most_its_duration",
            "test_row_28_limit_holds_while_the_clock_jumps_back_and_forth",
        ),
    ),
    29: Row(
        "client's clock is off by an hour",
        "no effect",
        "time.time patched",
        at(OLD, "test_clients_wall_clock_does_not_affect_leases"),
    ),
    30: Row(
        "holder paused past its lease",
        "the next caller is granted with a larger fence; the paused holder sees its loss",
        "SIGSTOP of the holder's process",
        at("behaviour/test_processes", "test_paused_process_does_not_hold_its_expired_lease"),
    ),
    31: Row(
        "holder killed",
        "its permit is free after its lease and one check",
        "SIGKILL of the holder's process",
        (
            *at(WAYS, "test_row_31_permit_of_a_killed_holder_is_free_after_its_lease"),
            *at(OLD, "test_permit_of_a_killed_holder_is_free_after_its_lease_duration"),
        ),
    ),
    32: Row(
        "fork while holding",
        "the child neither renews nor releases",
        "os.fork inside the block, and while another thread uses the pool",
        (
            *at(
                "behaviour/test_processes",
                "test_forked_child_cannot_renew_or_release_its_parents_leases",
            ),
            *at(WAYS, "test_row_32_child_forked_while_a_thread_uses_the_pool_does_not_hang"),
        ),
    ),
    33: Row(
        "renewal thread dies, or can't renew",
        "the lease is lost before it expires on the server; never renewed past max_hold",
        "SystemExit in the thread; a proxy that rejects every request",
        (
            *at(
                WAYS,
                "test_row_33_unrenewable_lease_is_lost_before_the_server_ends_it",
            ),
            *at(
                OLD,
                "test_on_lost_is_called_before_an_unrenewable_lease_expires",
                "test_renewal_thread_that_died_is_replaced",
            ),
            *at(PERMITS, "test_renew_option_renews_a_lease_with_a_timeout_until_max_hold"),
        ),
    ),
    34: Row(
        "asyncio task cancelled at every await",
        "no holder and no waiter left",
        "cancellation at the k-th await, once and repeatedly, for all k",
        at(
            "behaviour/test_cancellation",
            "test_task_cancelled_at_any_await_leaves_no_holder_and_no_waiter",
        ),
    ),
    35: Row(
        "many tasks or greenlets on one thread",
        "each has its own lease",
        "gather; gevent in a separate process",
        (
            *at(PERMITS, "test_semaphore_object_can_be_shared_by_threads_or_tasks"),
            *at("behaviour/test_storms", "test_500_tasks_on_one_loop_never_exceed_the_limit"),
            *at("test_locks_waiting", "test_greenlets_exclude_each_other_like_threads"),
        ),
    ),
    36: Row(
        "first waiters of the queue die or are paused",
        "the next waiters are delayed once, not once per dead waiter",
        "SIGKILL and SIGSTOP of several first waiters",
        at(
            "behaviour/test_queue_deaths",
            "test_dead_or_paused_waiters_delay_the_next_waiter_only_for_seconds",
        ),
    ),
    37: Row(
        "quorum: a node down or slow, its clock jumps",
        "elapsed time and drift are deducted; a failed acquire is undone on all servers",
        "five servers: killed, stopped, one with a moved clock",
        at(
            "topologies/test_quorum",
            "test_quorum_works_with_two_of_five_killed_and_fails_with_three",
            "test_quorum_works_with_two_hung_servers_and_releases_on_them_later",
            "test_quorum_never_exceeds_the_limit_while_servers_stop_and_return",
            "test_quorum_stays_safe_when_the_clock_of_one_server_jumps",
            "test_requested_lease_covers_the_local_expiry_plus_drift",
        ),
    ),
    38: Row(
        "pool or maxclients exhausted",
        "waiters never starve releases",
        "max_connections=1 with 20 workers; maxclients 4",
        at(
            OLD,
            "test_waiters_do_not_starve_releases_of_connections",
            "test_acquire_raises_unavailable_in_time_when_maxclients_is_reached",
        ),
    ),
    39: Row(
        "Redis down under a request limit",
        "open, closed, or local applies; one probe at a time, so that requests stay fast",
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
        "exactly one release, not too early",
        "sockets aborted under gunicorn and uvicorn; a middleware that raises",
        (
            *at(SITES, "test_stream_holds_its_permit_until_its_last_byte_is_sent"),
            *at(SITES, "test_permit_is_released_when_the_client_of_a_stream_disconnects"),
            *at(VIEWS, "test_permit_is_released_when_another_middleware_drops_the_response"),
            *at("test_requests_response", "test_lease_of_a_garbage_collected_response_expires"),
        ),
    ),
    41: Row(
        "two renewals of one lease in flight, replies in either order",
        "local expiry is never later than the server's; no renewal shortens an unanswered one",
        "a proxy delays a request or a reply; load of twelve threads",
        at(
            "behaviour/test_renewals",
            "test_delayed_reply_does_not_undo_a_later_renewal",
            "test_renewal_thread_does_not_shorten_an_unanswered_renewal",
            "test_local_expiry_is_correct_when_a_renewal_reaches_the_server_late",
            "test_lease_is_checked_in_time_after_an_unanswered_shorter_renewal",
            "test_local_expiry_is_never_later_than_the_servers_under_load",
        ),
    ),
    42: Row(
        "with block that ends in another thread or task than it began",
        "it releases what it acquired, and nothing else",
        "generators that a pool continues, that the loop closes, and that interleave on one object",
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
        "the call works or fails; the next use starts the thread; no lease counts as held too long",
        "Thread.start that raises; a memory limit that prevents its stack, then lifted",
        (
            *at(
                "test_engine_keeper",
                "test_next_use_starts_the_renewer_when_memory_for_threads_was_short",
                "test_lease_expires_locally_in_time_when_no_thread_can_renew_it",
                "test_check_starts_the_renewer_when_its_thread_could_not_start",
                "test_watching_thread_sends_renewals_when_the_node_queue_gets_no_thread",
            ),
            *at(
                ENGINE,
                "test_worker_retries_a_failed_thread_start_with_the_next_work",
                "test_callbacks_that_got_no_thread_run_when_one_can_be_started",
                "test_quorum_loop_without_a_thread_is_a_failure_and_the_next_step_starts_one",
            ),
        ),
    ),
    44: Row(
        "memory full while leases are held",
        "leases are renewed and released; waiters are granted; new requests are rejected",
        "maxmemory 1; every script; every order of messages in the model",
        (
            *at(HERE, "test_row_44_full_memory_keeps_leases_and_allows_handoff"),
            *at(
                "test_protocol_memory",
                "test_full_memory_allows_the_call",
                "test_full_memory_allows_a_release_to_be_counted",
                "test_full_memory_allows_a_waiter_to_keep_its_place_and_be_granted",
                "test_full_memory_denies_a_new_name_and_stores_nothing",
            ),
        ),
    ),
    45: Row(
        "1,000 and 10,000 waiters of a killed process",
        "the next live waiter is granted within 3 and 6 s; a live process keeps its places",
        "SIGKILL of a process with these waiters, ahead of another waiter",
        at(
            HERE,
            "test_row_45_waiters_of_a_killed_process_are_skipped_together",
            "test_row_45_waiters_of_a_live_process_keep_their_places",
        ),
    ),
    46: Row(
        "network accepts requests and never replies",
        "the holder is notified before the next grant; other leases are renewed in time",
        "a proxy that discards all requests, timeouts of 5 s; another alias that hangs; SIGSTOP of "
        "a shard and of three of five quorum servers",
        (
            *at(
                TOLD,
                "test_loss_is_reported_before_the_next_grant_when_the_network_drops_all",
                "test_loss_is_reported_in_time_while_another_alias_hangs",
                "test_loss_is_reported_in_time_while_other_callbacks_are_slow",
                "test_loss_is_reported_in_time_while_renewals_hang",
            ),
            *at(
                "topologies/test_told",
                "test_loss_on_a_hung_shard_is_reported_in_time_and_delays_no_other_shard",
                "test_quorum_loss_is_reported_in_time_when_the_majority_hangs",
                "test_quorum_lease_is_kept_when_two_of_five_servers_hang",
            ),
        ),
    ),
    47: Row(
        "exhausted pool that waits for a free connection",
        "every call ends within its time limit; a release succeeds",
        "BlockingConnectionPool and a project's own class, without a free connection",
        at(
            "behaviour/test_budgets",
            "test_calls_do_not_wait_for_an_exhausted_blocking_pool",
            "test_calls_do_not_wait_for_an_exhausted_plain_pool",
            "test_async_call_ends_within_its_time_limit_when_its_pool_blocks",
            "test_call_ends_within_its_time_limit_when_the_server_hangs",
            "test_call_ends_within_its_time_limit_when_the_network_drops_all",
        ),
    ),
    48: Row(
        "callback or receiver of a loss raises SystemExit",
        "other callbacks run",
        "SystemExit, KeyboardInterrupt, and others in on_lost and in a signal receiver",
        (
            *at(
                TOLD,
                "test_on_lost_that_raises_system_exit_stops_no_other_callback",
                "test_signal_receiver_that_raises_system_exit_stops_no_other_callback",
            ),
            *at(
                ENGINE, "test_callbacks_submitted_together_run_in_order_when_one_raises_system_exit"
            ),
        ),
    ),
    50: Row(
        "exception of a signal handler or a destructor inside a call",
        "no caller hangs beyond its time limit; no permit is lost for longer than a lease",
        "a tracer that raises, or calls again, at each bytecode; setitimer",
        (
            *at(
                ENGINE,
                "test_caller_interrupted_at_any_bytecode_does_not_block_the_worker",
                "test_caller_interrupted_at_any_bytecode_does_not_block_the_executor",
                "test_interrupted_step_on_the_quorum_loop_does_not_block_others",
                "test_waiter_interrupted_at_any_line_does_not_block_others",
                "test_storm_of_signals_blocks_no_thread",
                "test_destructor_may_submit_inside_a_submit_of_its_own_thread",
            ),
            *at(
                "test_locks_interrupted",
                "test_interrupted_acquire_leaves_no_renewed_lease",
            ),
        ),
    ),
    51: Row(
        "event loop that ends while tasks are inside",
        "the loop ends at once, with no pending task and no permit left",
        "asyncio.run and uvloop.run, 30 busy tasks each; timeouts, shields, groups; SIGSTOP",
        at(
            LOOPS,
            "test_event_loop_ends_at_once_while_tasks_are_busy",
            "test_event_loop_ends_within_seconds_when_redis_does_not_answer",
        ),
    ),
    52: Row(
        "event loop closed while tasks run; settings changed while a loop runs",
        "the loop and its sockets are collected; its permits expire",
        "loop.close() with holders and waiters; override_settings while a task waits",
        at(
            LOOPS,
            "test_closed_loop_and_its_sockets_are_garbage_collected",
            "test_changed_settings_close_the_former_connections_of_a_loop",
            "test_waiter_is_granted_after_the_settings_changed",
        ),
    ),
    53: Row(
        "process so busy that it reads replies late",
        "the replies count: no outage is reported, and the limit holds",
        "a loop blocked for 0.7 s at a time; a thread that holds the GIL; two processes",
        (
            *at(
                "behaviour/test_busy",
                "test_blocked_event_loop_reads_the_replies_that_arrived_meanwhile",
                "test_event_loop_may_be_blocked_while_it_connects",
                "test_threads_waiting_for_the_gil_read_the_replies_that_arrived_meanwhile",
                "test_busy_worker_does_not_report_an_outage",
                "test_busy_processes_never_exceed_the_limit",
            ),
            *at("test_engine_batching", "test_loop_timeout_raises_after_its_time"),
        ),
    ),
    54: Row(
        "ATOMIC_REQUESTS around a plain lock",
        "a warning before damage; with the safe forms, exactly 8 tickets are sold",
        "PostgreSQL, 15 buyers, 8 tickets",
        (
            *at(
                "test_locks_postgres",
                "test_plain_lock_oversells_and_logs_one_warning",
                "test_atomic_with_atomic_requests_raises_and_names_the_remedy",
                "test_safe_ways_sell_exactly_the_tickets",
            ),
            *at("test_checks", "test_check_reports_each_mistake_and_no_other"),
        ),
    ),
    55: Row(
        "operator override while many new keys are used",
        "no key without expiry, no late renewal; in force for every key in every process",
        "thousands of keys of a paused policy; overrides that can't be read; a second process",
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
        "all are renewed, in batches of limited size",
        "10,000 leases of 30 s and 2,000 of 3 s on a simulated clock",
        at(
            "test_engine_keeper",
            "test_work_of_the_renewer_grows_with_the_number_of_renewals",
            "test_renewals_are_sent_in_batches",
        ),
        "no test measures CPU time: make bench writes it to benchmarks/RESULTS.md",
    ),
}

MISUSE, KEYS, SCRIPTS = "behaviour/test_misuse", "test_protocol_keys", "test_protocol_scripts"
COUNTS = "test_protocol_statistics"
PARSING, GARBAGE, THREATS = "fuzz/test_parsing", "fuzz/test_garbage", "faults/test_threats"
POLICY, ACTIONS, ACT = "test_requests_policy", "test_admin_actions", "test_command_act"

INPUT: dict[str, Row] = {
    "name that is empty or unprintable": Row(
        "name: empty, not a str, NUL, newline, ANSI codes, lone surrogate",
        "ValueError or TypeError before a command is sent; shown escaped",
        "such names, and random names",
        (
            *at(MISUSE, "test_unusable_name_or_key_raises_an_error"),
            *at("test_protocol_keys", "test_invalid_name_is_rejected"),
            *at("test_command_status", "test_control_characters_are_shown_as_escapes"),
            *at(THREATS, "test_names_and_labels_cannot_inject_lines_into_the_log"),
        ),
    ),
    "path, or a server's words, with line breaks and ANSI codes": Row(
        "path of a request, text of an error, with line breaks and ANSI codes",
        "one line per message, escaped",
        "each, rejected and admitted",
        at("test_logs", "test_path_of_a_rejected_request_adds_no_log_line"),
    ),
    "client that reads slowly": Row(
        "client that reads one byte at a time",
        "its stream ends with its permit, before the next request is admitted; one log line",
        "a socket with a small buffer, under gunicorn and uvicorn",
        at(SITES, "test_slowly_read_stream_ends_with_its_lease"),
    ),
    "name with any other character": Row(
        "name: braces, colon, spaces, Unicode; too long",
        "works, one slot, no collision; too long: ValueError, request keys are digested",
        "such names, and random names",
        (
            *at(MISUSE, "test_unusual_names_work_and_are_different_locks"),
            *at(KEYS, "test_two_names_share_no_key", "test_keys_of_a_name_are_in_one_slot"),
            *at(POLICY, "test_invalid_primary_key_is_digested"),
        ),
    ),
    "NFC and NFD": Row(
        "two forms of one letter",
        "two names",
        "both forms",
        at(MISUSE, "test_composed_and_decomposed_letters_are_different_names"),
    ),
    "limit": Row(
        "limit: 0, negative, float, NaN, bool, str",
        "ValueError or TypeError",
        "each, and random JSON",
        (
            *at(MISUSE, "test_invalid_limit_raises_an_error"),
            *at(PARSING, "test_options_are_accepted_or_raise_an_error"),
        ),
    ),
    "timeout and blocking_timeout": Row(
        "duration: 0, negative, NaN, 1e30, str",
        "blocking_timeout=0 doesn't wait; otherwise ValueError or TypeError",
        "each, and random JSON",
        at(
            MISUSE,
            "test_invalid_duration_raises_an_error",
            "test_invalid_blocking_timeout_raises_an_error",
            "test_blocking_timeout_zero_tries_once",
            "test_blocking_timeout_can_be_infinite",
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
        "limit lowered while permits are in use; callers with different limits",
        "holders stay; the caller's limit applies unless an operator set one; reported",
        "both",
        (
            *at(PERMITS, "test_acquire_uses_the_callers_limit_and_keeps_all_holders"),
            *at(SCRIPTS, "test_acquire_stores_the_limit_of_a_conflicting_caller"),
            *at(
                "test_operators_actions",
                "test_resize_overrides_the_limit_of_callers_and_keeps_the_holders",
            ),
        ),
    ),
    "foreign value": Row(
        "another program's value under a key of the library",
        "an error that names the key; the value stays",
        "values of each type under each key; garbage in the library's values",
        (
            *at(OLD, "test_foreign_value_is_named_in_the_error_and_kept"),
            *at(SCRIPTS, "test_foreign_value_is_neither_used_nor_deleted"),
            *at(GARBAGE, "test_status_of_damaged_data_shows_what_is_readable"),
        ),
    ),
    "token": Row(
        "token guessed, replayed, used after release",
        "rejected; never shown in full",
        "forged handles; a search for tokens in logs, errors, pages, and repr",
        (
            *at(MISUSE, "test_forged_handle_cannot_be_adopted"),
            *at(
                PERMITS,
                "test_handle_can_be_adopted_only_once",
                "test_lease_can_be_released_only_once",
            ),
            *at(
                THREATS,
                "test_token_is_never_shown_in_full",
                "test_token_is_128_random_bits_of_the_system",
            ),
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
        "by GET, without CSRF, by view-only staff, outside the prefix",
        "405, 403, 403, rejected; every action has a LogEntry",
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
        "literal without --pattern; asks for confirmation; --dry-run only shows",
        "each",
        at(
            ACT,
            "test_clear_treats_a_name_as_a_glob_only_with_pattern",
            "test_clear_shows_the_holders_and_asks_for_confirmation",
            "test_clear_releases_no_holder_in_a_dry_run",
        ),
    ),
    "clear races a new holder": Row(
        "clear while the holder changes",
        "removes only the holder that was shown",
        "the holder changes after it was shown",
        (
            *at(ACT, "test_clear_releases_only_holders_that_were_shown"),
            *at(
                "test_operators_actions",
                "test_clear_removes_only_the_shown_holder_not_a_newcomer",
            ),
        ),
    ),
    "keys without bound": Row(
        "names that contain data of users",
        "all keys expire, the registry is trimmed, rejections leave no key",
        "many names, and rejections",
        (
            *at(COUNTS, "test_statistics_are_stored_only_while_the_history_is_on_and_expire"),
            *at(VIEWS, "test_process_writes_statistics_for_a_bounded_number_of_keys"),
            *at("test_protocol_history", "test_no_key_is_left_after_the_last_lease_and_waiter"),
            *at("test_operators_status", "test_registry_drops_names_that_are_old_or_too_many"),
        ),
    ),
    "X-Forwarded-For": Row(
        "forged",
        "REMOTE_ADDR applies unless proxies are trusted; IPv6 by /64",
        "forged headers, and random headers",
        (
            *at(POLICY, "test_address_is_read_only_from_trusted_proxies"),
            *at(POLICY, "test_addresses_of_one_network_have_the_same_digest"),
            *at(PARSING, "test_addresses_before_the_trusted_proxies_do_not_affect_the_key"),
        ),
    ),
    "user ids and addresses in keys": Row(
        "ids, addresses and free-form keys in key names",
        "addresses and free-form keys are digested with SECRET_KEY; the user's pk is plain",
        "each",
        (
            *at(POLICY, "test_primary_key_is_not_digested"),
            *at(POLICY, "test_digest_uses_the_old_secret_key_while_it_is_a_fallback"),
            *at("test_command_status", "test_page_of_a_policy_shows_all_keys_or_the_key_given"),
        ),
    ),
    "refusals": Row(
        "body of a 503 or 429",
        "no names of holders, no hosts, no tokens",
        "both, in each form",
        at(VIEWS, "test_rejection_contains_no_token_hostname_or_fence"),
    ),
    "password": Row(
        "password in a Redis URL",
        "in no error, status, or log",
        "a wrong password, and a server that is down",
        (
            *at(OLD, "test_unavailable_does_not_contain_the_wrong_password"),
            *at("test_operators_status", "test_unavailable_does_not_contain_the_password"),
        ),
    ),
    "metadata": Row(
        "labels",
        "bounded JSON, never pickle",
        "random text; the package's imports",
        (
            *at(PARSING, "test_label_is_shown_as_it_was_given_up_to_its_maximum"),
            *at(GARBAGE, "test_status_of_damaged_data_shows_what_is_readable"),
            *at(THREATS, "test_package_never_unpickles_or_evaluates"),
        ),
    ),
}


def every() -> dict[str, Row]:
    """Return all rows by their number or name."""
    return {**{str(number): row for number, row in FAULTS.items()}, **INPUT}
