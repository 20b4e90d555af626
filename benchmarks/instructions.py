"""Instructions of the server per script, which no other load on the machine moves.

python -m benchmarks.instructions: some two minutes; needs valgrind, and counts with its callgrind.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import redis

from devtools.servers import RedisServer, find_server
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of

from .report import Table, median
from .server import KEEP

TURNS = 40
# Under callgrind nobody may be taken for dead.
_HOUR = 3_600_000
_CONSTANTS = {
    **scripts.CONSTANTS,
    **dict.fromkeys(("FIRST", "CLAIM", "PATIENCE"), _HOUR),
    "ASLEEP": 2 * _HOUR,
}


class _Watched(RedisServer):
    """A server under callgrind."""

    @property
    def dump(self) -> str:
        return f"{self.directory}/callgrind"

    def command(self, binary: Path) -> list[str]:
        valgrind = shutil.which("valgrind") or ""
        watched = [valgrind, "--tool=callgrind", f"--callgrind-out-file={self.dump}"]
        return [*watched, *super().command(binary)]


class Counter:
    """What a server took for each kind of call."""

    def __init__(self, server: _Watched) -> None:
        self.client = client = redis.Redis.from_url(server.url, socket_timeout=60)
        self.taken: dict[str, list[int]] = {}
        self._server, self._dumps = server, 0
        self._shas = {
            verb: client.script_load(scripts.compose(verb, MappingProxyType(_CONSTANTS)))
            for verb in scripts.VERBS
        }
        self._shas["an empty script"] = client.script_load("return {'ok'}")

    def acquire(self, what: str, keys: Keys, token: str, how: str, script: str = "acquire") -> Any:
        argv = (_HOUR, 1, 1, "p", how, 10**9, 1, "-", '{"pid":1234,"thread":"worker-1"}', KEEP)
        return self._counted(what, lambda: self._run(script, keys, token, *argv))

    def release(self, what: str, keys: Keys, token: str, fence: bytes) -> Any:
        argv = (fence, "release", 0, 0, KEEP)
        return self._counted(what, lambda: self._run("release", keys, token, *argv))

    def _run(self, script: str, keys: Keys, token: str, *argv: Any) -> Any:
        own = keys.of(token)
        return self.client.evalsha(self._shas[script], len(own), *own, token, *argv)

    def _counted(self, what: str, run: Callable[[], Any]) -> Any:
        self._control("--zero")
        reply = run()
        self._control("--dump")
        self._dumps += 1
        text = Path(f"{self._server.dump}.{self._dumps}").read_text(encoding="utf-8")
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        self.taken.setdefault(what, []).append(int(found[1]) if found else 0)
        return reply

    def _control(self, word: str) -> None:
        command = ["callgrind_control", word, str(self._server.pid)]
        subprocess.run(command, check=True, capture_output=True)


def count() -> Table:
    table = Table("Instructions of the server per call", "reported")
    with _Watched(unixsocket=True, config={"hz": 1}) as server:
        counter = Counter(server)
        alone, busy = keys_of("bench", "alone", None, KEEP), keys_of("bench", "busy", None, KEEP)
        for _ in range(TURNS):
            token = secrets.token_hex(16)
            counter.acquire("an empty script", alone, token, "try", script="an empty script")
            _, fence, *_ = counter.acquire("acquire, nobody is there", alone, token, "try")
            counter.release("release, nobody waits", alone, token, fence)
        queue = [secrets.token_hex(16) for _ in range(4)]
        _, fence, *_ = counter.acquire("", busy, queue[0], "wait")
        for token in queue[1:]:
            counter.acquire("", busy, token, "wait")
        for _ in range(TURNS):
            queue.append(secrets.token_hex(16))
            counter.acquire("acquire that waits", busy, queue[-1], "wait")
            counter.acquire("acquire, asked again", busy, queue[2], "again")
            counter.acquire("acquire, refused", busy, secrets.token_hex(16), "try")
            counter.release("release that hands over", busy, queue.pop(0), fence)
            element: Any = counter.client.lpop(busy.wake + queue[0])
            fence = element.split()[0]
        del counter.taken[""]
        empty = median(counter.taken["an empty script"])
        for what, taken in counter.taken.items():
            more = median(taken) - empty
            table.rows.append({"": what, "instructions": median(taken), "beyond empty": more})
    return table


if __name__ == "__main__":
    if shutil.which("valgrind") is None or find_server() is None:
        sys.exit("This needs valgrind, and a Redis server to run under it.")
    print(count())
