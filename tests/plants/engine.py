"""Defects of the engine."""

from __future__ import annotations

from .plant import Plant

TOLD, BUDGETS = "behaviour/test_told.py::", "behaviour/test_budgets.py::"
KEEPER, THREADS = "test_engine_keeper.py::", "test_engine_threads.py::"

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
        "(until - now) / 3",
        "(until - now) / 2",
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
]
