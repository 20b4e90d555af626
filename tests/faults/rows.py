"""The tests for each row of the tables in RESULTS.md. The tables say what the tests prove.

`report.py` runs these tests, and writes their outcomes and figures into the tables.
"""

from __future__ import annotations


def at(file: str, *names: str) -> tuple[str, ...]:
    """Return the node ids of tests in one file below tests/. `name[word]` stands for the runs of a
    test whose parameters contain the word."""
    return tuple(f"tests/{file}.py::{name}" for name in names)


HERE, CLOCKS = "faults/test_servers", "faults/test_clocks"
TOLD, ENGINE = "behaviour/test_told", "test_engine_threads"
OLD, PERMITS = "behaviour/test_faults", "behaviour/test_permits"
LOOPS, BUDGETS = "behaviour/test_loops", "behaviour/test_budgets"
SENTINEL, CLUSTER = "topologies/test_sentinel", "topologies/test_cluster"
OUTAGE, VIEWS, SITES = "test_requests_outage", "test_requests_views", "test_requests_servers"

#: Tests with a parameter for each fault.
FAILS = "test_calls_fail_in_time_and_leave_nothing_behind"
QUEUE = "test_mishap_costs_no_waiter_its_place_or_grant"
CUT = "test_row_07_fences_grow_when_the_end_of_the_append_only_file_is_lost"
MISUSE, KEYS, SCRIPTS = "behaviour/test_misuse", "test_protocol_keys", "test_protocol_scripts"
PARSING, GARBAGE, THREATS = "fuzz/test_parsing", "fuzz/test_garbage", "faults/test_threats"
POLICY, ACTIONS, ACT = "test_requests_policy", "test_admin_actions", "test_command_act"

#: Node ids of tests, by the first cell of the table row that they prove.
PROOFS: dict[str, tuple[str, ...]] = {
    "1": (
        *at(OLD, "test_acquire_is_sent_again_when_its_reply_is_lost"),
        *at(OLD, "test_each_call_returns_its_answer_when_a_reply_is_lost"),
        *at(OLD, f"{QUEUE}[reply lost]"),
    ),
    "2": at(
        OLD, f"{FAILS}[loses replies]", "test_acquire_that_arrives_after_its_undo_takes_no_permit"
    ),
    "3": (
        *at(OLD, f"{FAILS}[hangs]"),
        *at(BUDGETS, "test_waiter_ends_soon_after_its_timeout_when_the_server_hangs"),
        *at(BUDGETS, "test_operator_reads_end_within_their_time_limit_when_the_server_hangs"),
    ),
    "4": at(OLD, "test_acquire_raises_unavailable_when_the_port_is_closed"),
    "5": at(OLD, "test_lost_data_calls_on_lost_and_fences_grow[restart]"),
    "6": at(HERE, f"{CUT}[nothing]"),
    "7": at(HERE, f"{CUT}[some bytes]", f"{CUT}[half]", f"{CUT}[all]"),
    "8": at(SENTINEL, "test_failover_loses_unreplicated_grants_and_calls_on_lost"),
    "9": at(SENTINEL, "test_all_names_are_granted_again_after_a_failover_under_load"),
    "10": (
        *at(SENTINEL, "test_client_ignores_an_old_primary_that_returns"),
        *at(OLD, f"{FAILS}[no replicas]"),
    ),
    "11": at(SENTINEL, "test_waiter_keeps_its_place_through_a_failover[demote]"),
    "12": at(SENTINEL, "test_waiter_keeps_its_place_through_a_failover"),
    "13": at(OLD, f"{QUEUE}[no wake-up]"),
    "14": at(OLD, f"{QUEUE}[subscription killed]", f"{QUEUE}[connections killed]"),
    "15": at("behaviour/test_storms", "test_release_wakes_one_waiter_per_freed_permit"),
    "16": at(
        CLUSTER,
        "test_slots_migrate_under_load_without_an_error",
        "test_waiter_is_granted_after_its_slot_has_moved",
        "test_calls_wait_while_their_slot_is_half_moved",
    ),
    "17": at(
        CLUSTER,
        "test_replica_takes_over_under_load",
        "test_stopped_shard_is_unavailable_and_the_others_work",
    ),
    "18": (
        *at("test_protocol_keys", "test_keys_of_a_name_are_in_one_slot"),
        *at("test_protocol_keys", "test_braces_in_a_prefix_do_not_change_the_cluster_slot"),
    ),
    "19": at(OLD, f"{QUEUE}[scripts flushed]"),
    "20": at(OLD, f"{FAILS}[endless script]"),
    "21": at(HERE, "test_row_21_acquire_raises_unavailable_in_time_while_the_server_loads"),
    "22": at(OLD, f"{FAILS}[full memory]"),
    "23": (
        *at(HERE, "test_row_23_evicting_server_loses_leases_and_is_a_doctor_error"),
        *at("test_operators_doctor", "test_doctor_rates_the_facts_of_a_server"),
    ),
    "24": at(OLD, "test_lost_data_calls_on_lost_and_fences_grow[clear]"),
    "25": (
        *at(OLD, "test_unavailable_names_the_denied_command_not_the_password"),
        *at(
            OUTAGE,
            "test_log_and_doctor_name_why_redis_rejects_the_client_and_on_outage_applies",
            "test_rejected_client_is_logged_until_the_settings_are_corrected",
        ),
        *at("test_operators_doctor", "test_doctor_lists_denied_commands_keys_and_channels"),
    ),
    "26": at(OLD, f"{FAILS}[no replicas]"),
    "27": at(CLOCKS, "test_row_27_clock_jump_ahead_ends_leases_and_calls_on_lost"),
    "28": at(
        CLOCKS,
        "test_row_28_clock_jump_back_extends_a_dead_lease_by_at_most_its_duration",
        "test_row_28_limit_holds_while_the_clock_jumps_back_and_forth",
    ),
    "29": at(OLD, "test_clients_wall_clock_does_not_affect_leases"),
    "30": at("behaviour/test_processes", "test_paused_process_does_not_hold_its_expired_lease"),
    "31": at(OLD, "test_permit_of_a_killed_holder_is_free_after_its_lease_duration"),
    "32": at(
        "behaviour/test_processes", "test_forked_child_cannot_renew_or_release_its_parents_leases"
    ),
    "33": (
        *at(TOLD, "test_loss_is_reported_before_the_lease_ends[refuse]"),
        *at(OLD, "test_renewal_thread_that_died_is_replaced"),
        *at(PERMITS, "test_lease_is_renewed_until_max_hold_or_for_ever"),
    ),
    "34": at(
        "behaviour/test_cancellation",
        "test_task_cancelled_at_any_await_leaves_no_holder_and_no_waiter",
    ),
    "35": (
        *at(PERMITS, "test_semaphore_object_can_be_shared_by_threads_or_tasks"),
        *at("behaviour/test_storms", "test_threads_and_tasks_wait_in_one_queue"),
        *at("test_locks_waiting", "test_greenlets_exclude_each_other_like_threads"),
    ),
    "36": at(
        "behaviour/test_processes",
        "test_dead_or_paused_waiters_delay_the_next_waiter_only_for_seconds",
    ),
    "37": at(
        "topologies/test_quorum",
        "test_quorum_works_when_two_of_five_servers_are_down_and_not_when_three_are",
        "test_quorum_works_with_two_hung_servers_and_not_with_three",
        "test_quorum_never_exceeds_the_limit_while_servers_stop_and_return",
        "test_quorum_stays_safe_when_the_clock_of_one_server_jumps",
        "test_quorum_lease_is_renewed_extended_and_expires",
    ),
    "38": at(
        OLD, "test_waiters_do_not_starve_releases_of_connections", f"{FAILS}[no free connection]"
    ),
    "39": (
        *at(
            OUTAGE,
            "test_outage_is_logged_once_when_many_permits_are_held",
            "test_success_of_a_request_from_before_an_outage_does_not_end_it",
            "test_requests_do_not_ask_a_server_that_is_known_to_be_down",
            "test_on_outage_decides_which_requests_are_admitted",
        ),
    ),
    "40": (
        *at(
            SITES,
            "test_stream_holds_its_permit_until_its_last_byte_is_sent",
            "test_permit_is_released_when_the_client_of_a_stream_disconnects",
        ),
        *at(
            "test_requests_response",
            "test_lease_of_a_garbage_collected_response_expires",
            "test_permit_is_released_when_another_middleware_drops_the_response",
        ),
    ),
    "41": at(
        TOLD,
        "test_local_expiry_is_correct_when_a_renewal_is_delayed",
        "test_renewal_thread_shortens_no_unanswered_renewal",
        "test_lease_is_checked_in_time_after_an_unanswered_shorter_renewal",
        "test_local_expiry_is_never_later_than_the_servers_under_load",
    ),
    "42": (
        *at(
            "test_locks_blocks",
            "test_rlock_is_released_when_its_last_block_ends",
            "test_block_releases_what_it_acquired_wherever_it_ends",
            "test_nested_and_interleaved_blocks_release_one_permit_each",
            "test_block_that_ends_in_another_thread_releases_nothing_if_ambiguous",
        ),
    ),
    "43": (
        *at(
            ENGINE,
            "test_worker_retries_a_failed_thread_start_with_the_next_work",
            "test_next_acquire_starts_the_renewer_that_lacked_memory_for_a_thread",
            "test_lease_expires_locally_in_time_when_no_thread_can_renew_it",
            "test_lease_is_renewed_after_a_renewal_thread_could_not_start",
            "test_callback_that_got_no_thread_runs_later",
        ),
        *at(
            "test_engine_quorum",
            "test_quorum_without_a_thread_is_unavailable_and_the_next_call_starts_one",
        ),
    ),
    "44": (
        *at(HERE, "test_row_44_full_memory_keeps_leases_and_allows_handoff"),
        *at("test_protocol_history", "test_scripts_break_no_rule_when_random_clients_call_them"),
        *at("test_protocol_memory", "test_full_memory_allows_a_release_to_be_counted"),
        *at("test_protocol_memory", "test_full_memory_denies_a_new_name_and_stores_nothing"),
    ),
    "45": at(
        HERE,
        "test_row_45_waiters_of_a_killed_process_are_skipped_together",
        "test_row_45_waiters_of_a_live_process_keep_their_places",
    ),
    "46": (
        *at(
            TOLD,
            "test_loss_is_reported_before_the_lease_ends[swallow]",
            "test_node_that_hangs_delays_no_renewal_on_another_node",
        ),
        *at(CLUSTER, "test_stopped_shard_is_unavailable_and_the_others_work"),
        *at("topologies/test_quorum", "test_quorum_works_with_two_hung_servers_and_not_with_three"),
    ),
    "47": at(
        BUDGETS,
        "test_calls_do_not_wait_for_an_exhausted_pool",
        "test_async_call_ends_within_its_time_limit_when_its_pool_blocks",
    ),
    "48": (
        *at(TOLD, "test_callback_that_raises_system_exit_stops_no_other_callback"),
        *at(ENGINE, "test_callbacks_submitted_together_run_in_order_when_one_raises_system_exit"),
    ),
    "50": (
        *at(
            ENGINE,
            "test_waiter_interrupted_at_any_line_does_not_block_others",
            "test_exceptions_of_many_signals_block_no_thread",
            "test_destructor_may_submit_inside_a_submit_of_its_own_thread",
            "test_caller_interrupted_at_any_bytecode_does_not_block_others",
        ),
        *at("test_engine_quorum", "test_thread_interrupted_at_any_bytecode_does_not_block_others"),
        *at("test_locks_blocks", "test_interrupted_acquire_leaves_no_lease_behind"),
    ),
    "51": at(
        LOOPS,
        "test_event_loop_ends_at_once_while_tasks_are_busy",
        "test_event_loop_ends_within_seconds_when_redis_does_not_answer",
    ),
    "52": at(
        LOOPS,
        "test_loop_that_ends_or_is_closed_leaves_no_connection",
        "test_waiter_is_granted_after_the_settings_changed_and_connections_are_closed",
    ),
    "53": (
        *at(
            BUDGETS,
            "test_blocked_event_loop_reads_the_replies_that_arrived_meanwhile",
            "test_threads_waiting_for_the_gil_read_the_replies_that_arrived_meanwhile",
            "test_busy_worker_reports_no_outage_and_keeps_the_limit",
        ),
        *at("test_engine_async", "test_loop_timeout_counts_blocked_time_only_after_a_maximum"),
    ),
    "54": (
        *at(
            "test_locks_postgres",
            "test_plain_lock_oversells_and_logs_one_warning",
            "test_locks_that_are_released_after_commit_sell_each_ticket_once",
        ),
        *at(
            "test_requests_transactions",
            "test_atomic_inside_a_transaction_raises_before_redis_is_asked",
        ),
        *at("test_checks", "test_check_reports_each_mistake_and_nothing_else"),
    ),
    "55": (
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
    "58": (
        *at("test_engine_renewal", "test_thousands_of_leases_are_renewed_in_time_and_in_batches"),
    ),
    "name: empty, not a str, NUL, newline, ANSI codes, lone surrogate": (
        *at(MISUSE, "test_unusable_name_or_key_raises_an_error"),
        *at("test_command_status", "test_control_characters_are_shown_as_escapes"),
        *at(THREATS, "test_names_and_labels_cannot_inject_lines_into_the_log"),
        *at("test_protocol_keys", "test_invalid_name_is_rejected"),
    ),
    "path of a request, text of an error, with line breaks and ANSI codes": at(
        "test_logs", "test_line_breaks_in_the_path_of_a_rejected_request_are_escaped"
    ),
    "client that reads one byte at a time": at(
        SITES, "test_slowly_read_stream_ends_with_its_lease"
    ),
    "name: braces, colon, spaces, Unicode; too long": (
        *at(MISUSE, "test_unusual_names_work_and_are_different_locks"),
        *at(KEYS, "test_two_names_share_no_key", "test_keys_of_a_name_are_in_one_slot"),
        *at("test_requests_policy", "test_key_user_is_the_primary_key_or_a_digest"),
    ),
    "two forms of one letter": at(MISUSE, "test_unusual_names_work_and_are_different_locks"),
    "limit: 0, negative, float, NaN, bool, str": (
        *at(MISUSE, "test_invalid_option_raises_an_error_that_names_it[limit]"),
        *at(PARSING, "test_options_are_accepted_or_raise_an_error"),
    ),
    "duration: 0, negative, NaN, 1e30, str": at(
        MISUSE,
        "test_invalid_option_raises_an_error_that_names_it[timeout]",
        "test_invalid_argument_of_acquire_raises_an_error[timeout]",
        "test_blocking_timeout_can_be_zero_or_infinite",
    ),
    "without parentheses, on async, class, method, helper": (
        *at(
            VIEWS,
            "test_decorator_on_anything_but_a_view_raises_type_error",
            "test_unnamed_semaphore_is_named_after_its_view",
        ),
        *at("test_locks_synchronized", "test_synchronized_rejects_mistakes_when_it_decorates"),
        *at("test_locks_synchronized", "test_synchronized_decorates_every_kind_of_callable"),
    ),
    "limit lowered while permits are in use; callers with different limits": (
        *at(PERMITS, "test_acquire_counts_permits_against_the_limit_of_the_caller"),
        *at(SCRIPTS, "test_acquire_stores_the_limit_of_a_conflicting_caller"),
        *at(
            "test_operators_actions", "test_resize_replaces_the_callers_limit_and_keeps_the_holders"
        ),
    ),
    "another program's value under a key of the library": (
        *at(OLD, "test_foreign_value_is_named_in_the_error_and_kept"),
        *at(SCRIPTS, "test_foreign_value_or_unknown_format_is_neither_used_nor_deleted"),
        *at("fuzz/test_garbage", "test_status_of_damaged_data_shows_what_is_readable"),
    ),
    "token guessed, replayed, used after release": (
        *at(MISUSE, "test_forged_handle_cannot_be_adopted"),
        *at(PERMITS, "test_handle_can_be_adopted_only_once", "test_ended_lease_changes_nothing"),
        *at(
            THREATS,
            "test_token_is_never_shown_in_full",
            "test_token_is_128_random_bits_of_the_system",
        ),
        *at("test_admin_pages", "test_name_page_shows_holders_but_not_their_tokens"),
    ),
    "name, label, user agent with HTML": at(
        "test_admin_pages", "test_html_in_names_and_labels_is_escaped"
    ),
    "by GET, without CSRF, by view-only staff, outside the prefix": at(
        ACTIONS,
        "test_get_does_not_carry_out_an_action",
        "test_action_needs_the_csrf_token_and_the_permission",
        "test_each_action_is_logged_with_user_and_reason",
    ),
    "locks clear 'x[1]' or '*'": (
        *at(
            ACT,
            "test_clear_treats_a_name_as_a_glob_only_with_pattern",
            "test_clear_shows_the_holders_and_asks_for_confirmation",
        ),
    ),
    "clear while the holder changes": (
        *at(ACT, "test_clear_releases_only_holders_that_were_shown"),
        *at("test_operators_actions", "test_clear_ends_only_the_holder_or_waiter_with_the_id"),
    ),
    "names that contain data of users": (
        *at(VIEWS, "test_process_writes_statistics_for_a_bounded_number_of_keys"),
        *at("test_operators_status", "test_registry_drops_old_names_and_the_oldest_of_too_many"),
        *at(
            "test_protocol_statistics",
            "test_statistics_are_stored_only_while_the_history_is_on_and_expire",
        ),
        *at("test_protocol_history", "test_no_key_is_left_after_the_last_lease_and_waiter"),
    ),
    "forged": (
        *at(PARSING, "test_addresses_before_the_trusted_proxies_do_not_affect_the_key"),
        *at(POLICY, "test_requests_of_one_client_share_a_limit_by_address"),
    ),
    "ids, addresses and free-form keys in key names": (
        *at("test_command_status", "test_page_of_a_policy_shows_all_keys_or_the_key_given"),
        *at("test_requests_policy", "test_key_user_is_the_primary_key_or_a_digest"),
        *at(
            "test_requests_policy",
            "test_digest_is_the_same_in_every_version_and_for_each_secret_key_in_use",
        ),
        *at("test_command_status", "test_page_of_a_key_is_found_by_the_address_of_its_requests"),
    ),
    "body of a 503 or 429": (
        *at(
            "test_requests_rejection",
            "test_rejection_has_the_preferred_content_type_and_no_secrets",
        ),
    ),
    "password in a Redis URL": (
        *at(OLD, "test_unavailable_names_the_denied_command_not_the_password"),
        *at("test_command_usage", "test_command_fails_with_one_line_while_redis_is_down"),
    ),
    "labels": (
        *at(THREATS, "test_package_neither_unpickles_nor_evaluates_nor_uses_a_shell"),
        *at("fuzz/test_parsing", "test_label_is_shown_unchanged_up_to_its_maximum_length"),
        *at("fuzz/test_garbage", "test_status_of_damaged_data_shows_what_is_readable"),
    ),
}
