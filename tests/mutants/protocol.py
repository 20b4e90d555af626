"""Defects that are planted into the scripts, plans, and statistics, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "a share's text is not quoted",
        "/{share.translate(_SHARE)}",
        "/{share}",
        "behaviour/test_shares.py",
    ),
    Mutant(
        "a name with shares is in compact state",
        "int(ask.fair or shares), int(not shares)",
        "int(ask.fair or shares), 1",
        "behaviour/test_shares.py",
    ),
    Mutant(
        "the use of a share outlives its lost leases",
        "name.card > 0 and since == name.shared and tonumber(held)",
        "since and tonumber(held)",
        "test_protocol_shares.py",
    ),
    Mutant(
        "a heartbeat does not repair a share",
        "    repair_share(name, terms)\n",
        "",
        "test_protocol_shares.py",
    ),
    Mutant(
        "a full memory denies the heartbeat that repairs a share",
        "    redis.call('DEL', NEVER) -- a heartbeat must succeed even if the memory is full\n",
        "",
        "test_protocol_shares.py",
    ),
    Mutant(
        "a waiter without a record blocks its name",
        "state == 'w' and deadline_of(name, t, channel)",
        "deadline_of(name, t, channel)",
        "test_protocol_memory.py",
    ),
    Mutant(
        "a compact state of another version is read",
        "if format ~= FORMAT then",
        "if false then",
        "test_protocol_scripts.py",
    ),
    Mutant(
        "old minutes are not added to the totals",
        "  redis.call('HINCRBY', name.stats, to .. what, sum)\n",
        "",
        "test_protocol_statistics.py",
    ),
    Mutant(
        "the top keys of old hours stay",
        "tonumber(at) < hour - 1",
        "tonumber(at) < hour - 100",
        "test_statistics.py",
    ),
    Mutant(
        "the gauges of a group never expire",
        "redis.call('PEXPIRE', SHARES, life)\n",
        "",
        "test_statistics.py",
    ),
    Mutant(
        "the highest use of a policy is not written",
        "self.peak = max(self.peak, peak)",
        "self.peak = max(self.peak, 0)",
        "test_statistics.py",
    ),
    Mutant(
        "the highest use of a policy leaves out other processes",
        "int(reply[3]) if len(reply) > 3 else permits or 1",
        "permits or 1",
        "test_statistics.py",
    ),
    Mutant(
        "the highest use under an enforced limit counts as the demand",
        "if not capped:",
        "if True:",
        "test_operators_history.py",
    ),
    Mutant(
        "a foreign value in the statistics is not named",
        "error_of(wrong, key=_key(words))",
        "error_of(wrong)",
        "test_statistics.py",
    ),
    Mutant(
        "a message with another field can't be read",
        'message.split(" ")[:3]',
        'message.split(" ")',
        "test_protocol_plans.py",
    ),
    Mutant(
        "new callers overtake the queue in without_redis",
        "free = room and reason == FULL and first == token",
        "free = room and reason == FULL",
        "test_testing.py",
    ),
    Mutant(
        "two messages run a job at the same time",
        "if state == 'r' then\n",
        "if false then\n",
        "test_jobs_model.py",
    ),
]
