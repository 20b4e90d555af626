"""Defects of what operators see: the command and the pages."""

from __future__ import annotations

from .plant import Plant

CONSOLE_FIGURES = "test_console_figures.py::"
DISPLAY = "test_management_display.py::"
LOOKS = "test_operators_looks.py::"
USING = "test_operators_using.py::"

PLANTS = [
    Plant(
        "a reset is harmful",
        "console/acting.py",
        'return self.verb in ("resume", "reset")',
        'return self.verb in ("resume",)',
        (CONSOLE_FIGURES + "test_acts_that_take_something_back_are_harmless",),
    ),
    Plant(
        "releasing says what had ended",
        "console/acting.py",
        "gone=len(set(references)) - amount",
        "gone=0",
        (CONSOLE_FIGURES + "test_those_chosen_are_released_and_those_shown_are_cleared",),
    ),
    Plant(
        "a bar is busy at half",
        "console/charts.py",
        "share >= 0.75",
        "share >= 0.5",
        (CONSOLE_FIGURES + "test_a_bar_is_loud_only_where_somebody_waits",),
    ),
    Plant(
        "a chart of steps has one too many",
        "console/charts.py",
        "length = max(1, -(-len(rows) // STEPS))",
        "length = max(1, len(rows) // STEPS)",
        (CONSOLE_FIGURES + "test_minutes_are_put_together_by_their_highest_peak_and_their_sums",),
    ),
    Plant(
        "children by name",
        "console/pages.py",
        "return sorted(group.children, key=lambda s: (-s.waiting, -s.in_use))[:MOST_CHILDREN]",
        "return list(group.children)[:MOST_CHILDREN]",
        (CONSOLE_FIGURES + "test_a_policy_stands_above_the_keys_for_which_most_wait",),
    ),
    Plant(
        "mean waits are those of holds",
        "console/pages.py",
        "return _mean(total.wait_seconds, total.waited)",
        "return _mean(total.held_seconds, total.released)",
        (CONSOLE_FIGURES + "test_a_page_of_a_name_says_how_many_are_not_shown_and_means",),
    ),
    Plant(
        "broken pages show passwords",
        "console/broken.py",
        "without_secrets(said), remedy",
        "said, remedy",
        (CONSOLE_FIGURES + "test_nobody_is_told_a_password",),
    ),
    Plant(
        "sorting twice sorts alike",
        "console/views.py",
        'link(o=f"-{field}" if now else field)',
        "link(o=field)",
        (CONSOLE_FIGURES + "test_links_keep_the_search_and_turn_the_order",),
    ),
    Plant(
        "a doctor's warning is an error",
        "management/commands/locks.py",
        'if any(finding.level == "error" for finding in findings):',
        'if any(finding.level != "ok" for finding in findings):',
        (LOOKS + "test_the_exit_code_of_doctor_is_that_of_errors",),
    ),
    Plant(
        "acts from the command forget the reason",
        "management/commands/locks.py",
        "names = act(plain, child, using, reason=reason)",
        "names = act(plain, child, using, reason='')",
        (USING + "test_the_command_acts_and_reads_there",),
    ),
    Plant(
        "a clash is not said",
        "management/display.py",
        "if one.clash is not None and one is not told:",
        "if False:",
        (DISPLAY + "test_an_operators_marks_and_a_clash_are_said_with_the_remedy",),
    ),
    Plant(
        "a full name is not marked",
        "management/display.py",
        "full = one.in_use >= one.limit",
        "full = one.in_use > one.limit",
        (DISPLAY + "test_a_full_name_is_shown_in_a_colour_of_its_own",),
    ),
    Plant(
        "a typed address is no key",
        "management/naming.py",
        "return [*known, *possible, key][0]",
        "return key",
        (DISPLAY + "test_a_key_may_be_typed_as_people_know_it",),
    ),
    Plant(
        "run with --skip is 75",
        "management/runner.py",
        "if order.skip and lease.why.skippable:",
        "if False:",
        (DISPLAY + "test_what_is_skipped_is_another_ones_turn",),
    ),
    Plant(
        "Ctrl-Z suspends run",
        "management/runner.py",
        "        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)\n",
        "",
        (DISPLAY + "test_signals_are_passed_on_and_ctrl_z_does_not_suspend_what_renews",),
    ),
    Plant(
        "SIGTERM without SIGCONT",
        "management/watchdog.py",
        "        signal_all(signal.SIGCONT)\n",
        "",
        (DISPLAY + "test_all_that_is_left_is_asked_woken_and_killed",),
    ),
    Plant(
        "a host is safe HTML",
        "templates/admin/django_redis_sync/_who.html",
        "{{ who.host }}",
        "{{ who.host|safe }}",
        (CONSOLE_FIGURES + "test_html_in_what_a_process_says_of_itself_is_text",),
    ),
    Plant(
        "a thread is safe HTML",
        "templates/admin/django_redis_sync/_who.html",
        "{{ who.thread }}",
        "{{ who.thread|safe }}",
        (CONSOLE_FIGURES + "test_html_in_what_a_process_says_of_itself_is_text",),
    ),
    Plant(
        "a key's page lists its policy's keys",
        "console/pages.py",
        "listing(wanted) if status.key is None and Recent",
        "listing(wanted) if status.key is None or Recent",
        ("test_admin_pages.py::test_a_policys_page_lists_its_keys_and_a_keys_page_no_others",),
    ),
    Plant(
        "names may be changed in the admin",
        "admin.py",
        "def has_change_permission(",
        "def may_change(",
        ("test_admin_pages.py::test_nobody_may_add_change_or_delete_what_is_no_row",),
    ),
    Plant(
        "status --watch needs its seconds",
        "management/commands/locks.py",
        '"--watch", nargs="?", type',
        '"--watch", type',
        ("test_command_act.py::test_what_is_not_said_to_an_action_is_as_it_was",),
    ),
    Plant(
        "a waiter is not cleared by its id",
        "management/commands/locks.py",
        "for one in s.everyone]",
        "for one in s.holders]",
        (DISPLAY + "test_a_waiter_may_be_cleared_by_its_id_and_is_not_unless_it_is_named",),
    ),
    Plant(
        "a command begins with signals blocked",
        "management/watchdog.py",
        "    signal.pthread_sigmask(signal.SIG_SETMASK, [])\n",
        "",
        ("test_command_run.py::test_a_command_begins_with_the_signals_of_a_shell",),
    ),
    Plant(
        "live pages of names that are quoted are not found",
        "admin.py",
        'kwargs["object_id"] = unquote(kwargs["object_id"])',
        "pass",
        ("test_admin_pages.py::test_every_name_has_a_page_of_its_own",),
    ),
    Plant(
        "a name of dots leads elsewhere",
        "models.py",
        "return cls(id=_DOTS.get(quoted, quoted))",
        "return cls(id=quoted)",
        ("test_admin_pages.py::test_every_name_has_a_page_of_its_own",),
    ),
    Plant(
        "of very many holders some are cleared",
        "management/commands/locks.py",
        "statuses(names, using=using, rows=MOST_CLEARED)",
        "statuses(names, using=using)",
        ("test_command_act.py::test_all_that_hold_are_cleared_however_many_rows_a_status_has",),
    ),
    Plant(
        "of those chosen one is kept when Redis goes away",
        "console/views.py",
        "for name, some in request.POST.lists() for value in some)",
        "for name, value in request.POST.items())",
        ("test_admin_actions.py::test_all_that_were_chosen_are_kept_when_redis_goes_away",),
    ),
    Plant(
        "a drawing of the last hour says what is in use",
        "templates/admin/django_redis_sync/_table.html",
        "with peak=row.hour.peak %}",
        "with peak=row.group.in_use %}",
        ("test_admin_written.py::test_a_page_is_written_as_it_was_read",),
    ),
    Plant(
        "a table is labelled by what is not on the page",
        "templates/admin/django_redis_sync/_name.html",
        '<h2 id="keys-title">',
        "<h2>",
        (
            "test_admin_pages.py::"
            "test_each_page_stands_in_the_hosts_frame_and_leads_where_there_is_something",
        ),
    ),
    Plant(
        "a screen has a line too many",
        "management/terminal.py",
        "lines[: height - 1], text",
        "lines[:height], text",
        (DISPLAY + "test_a_screen_is_filled_and_what_is_left_out_is_counted",),
    ),
]
