"""The times of the protocol, in milliseconds: how soon a lost waiter or holder is replaced.

The Lua scripts measure all of them by the server's clock. To change a time, change it here: the
scripts are composed with these values. The times depend on each other:

- A waiter near the head of the queue sends a heartbeat every HEARTBEAT. Other waiters send it less
  often, but at least every ASLEEP - PATIENCE (3 s). A waiter counts as dead PATIENCE after its
  heartbeat was due. So a lost waiter is removed after 3 to 5 s, and ASLEEP has to be at least
  HEARTBEAT + PATIENCE.
- The engine sends the heartbeat of an event loop every ALIVE / 3, so two may be lost.
- Until the new holder answers a handoff, its lease lasts at most FIRST. It has to answer within
  CLAIM. So CLAIM has to be shorter than FIRST. CLAIM is HEARTBEAT + PATIENCE, so that the deadline
  of a waiter near the head of the queue also serves for its claim.
- TOMBSTONE_TTL must be longer than the max delay of a late copy of a request.
- A worker reports the number of jobs that it holds every second. HELD_LIFE has to be longer.

The times of clients are in seconds. Retries: `steps.py` and `plans.py`. Time limits of commands:
`engine/wire.py`, and for requests `limits/semaphore.py`. Renewals: `locks/lease_state.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: The times by their names in the scripts. After each: its meaning, and where it is used.
TIMES: Mapping[str, int] = MappingProxyType(
    {
        # Waiters
        "HEARTBEAT": 1000,  # interval of heartbeats near the head of the queue: wait.lua
        "PATIENCE": 2000,  # a waiter is dead if its heartbeat is overdue by this time: wait.lua
        "ASLEEP": 5000,  # max time until a waiter without a heartbeat is dead: wait.lua
        "ALIVE": 2500,  # time until a silent event loop is dead: wait.lua, engine/hub.py
        "NUDGE": 10,  # max delay of the first waiter after the rate opens: nudge.lua
        # Handoffs
        "FIRST": 5000,  # max lease until the new holder answers: grant.lua
        "CLAIM": 3000,  # max time for a new holder to answer, or it loses the lease: notify.lua
        # Keys
        "GRACE": 5000,  # min time that keys stay after the last lease or deadline: finish.lua
        "TOMBSTONE_TTL": 120_000,  # how long late copies are rejected: write_tombstone.lua
        # Jobs of task queues
        "ENDING": 10_000,  # max time from a release until the worker reports the end: end_run.lua
        "NOTED": 3_600_000,  # how long the end of a job with copies is known: job.lua, clear.lua
        "HELD_LIFE": 5000,  # how long the number of jobs that a worker holds is known: job.lua
    }
)
