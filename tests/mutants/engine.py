"""Defects that are planted into the engine, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "the main thread writes nothing at exit",
        "if self._thread is None and self._runs.acquire(blocking=False):",
        "if False:",
        "test_engine_housekeeping.py",
    ),
    Mutant(
        "a thread that can't start at exit is an error",
        " and not is_shutdown(error)",
        "",
        "test_engine_housekeeping.py",
    ),
    Mutant(
        "renewals of all nodes wait in one queue",
        "by_node.setdefault(server_of(self._alias).node_of(entry[0]), [])",
        "by_node.setdefault(None, [])",
        "test_engine_cluster.py",
    ),
    Mutant(
        "a second cancellation gives a plan more time",
        "self.until = self.until or now() + UNDO_BUDGET",
        "self.until = now() + UNDO_BUDGET",
        "test_engine_async.py",
    ),
    Mutant(
        "a forked child uses the pool of its parent",
        "is_ours = _used_by.setdefault(pool, os.getpid()) == os.getpid()",
        "is_ours = True",
        "behaviour/test_processes.py",
    ),
    Mutant(
        "callbacks run two seconds late",
        "    from django.db import connections as databases\n",
        "    from django.db import connections as databases\n    import time; time.sleep(2)\n",
        "behaviour/test_told.py",
    ),
    Mutant(
        "a callback that raises SystemExit ends its thread",
        '        except BaseException:\n            logger.exception("a callback',
        '        except Exception:\n            logger.exception("a callback',
        "behaviour/test_told.py",
    ),
    Mutant(
        "a pool that may block is used",
        "    return plain and ",
        "    return True or ",
        "behaviour/test_budgets.py",
    ),
    Mutant(
        "a client that follows ASK doesn't send ASKING",
        '_ASKING = pack(("ASKING",))',
        '_ASKING = pack(("PING",))',
        "test_engine_cluster.py",
    ),
    Mutant(
        "an early message is dropped",
        "            self._early[token] = element\n",
        "            return\n",
        "test_engine_async.py",
    ),
    Mutant(
        "the time of a blocked event loop counts",
        "late, self._left = now - self._due, self._left - seconds",
        "late, self._left = now - self._due, self._left - seconds - max(0.0, now - self._due)",
        "test_engine_async.py",
    ),
    Mutant(
        "grants of a minority are not undone",
        "        await self._undo(step, held, votes)\n        reply = self._rejection(votes, how)",
        "        reply = self._rejection(votes, how)",
        "test_engine_quorum.py",
    ),
    Mutant(
        "half of a quorum is a majority",
        "return len(self.aliases) // 2 + 1",
        "return len(self.aliases) // 2",
        "test_engine_quorum.py",
    ),
    Mutant(
        "drift is not deducted",
        "math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))",
        "int(ms)",
        "test_engine_quorum.py",
    ),
    Mutant(
        "a server that runs an endless script is final",
        '_BUSY = ("BUSY", ',
        "_BUSY = (",
        "test_engine_connections.py",
    ),
]
