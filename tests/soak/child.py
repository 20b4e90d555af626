"""A worker process that the soak kills or pauses: `python -m tests.soak.child SEED SECONDS LOG`.

It connects to the servers without a proxy. At the end it prints its counts as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time


def main() -> None:
    import django

    django.setup()
    logging.disable(logging.CRITICAL)

    from tests.support import journal

    from .work import Log, Threads

    journal.install_from_env()
    seed, seconds, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    parent, log = os.getppid(), Log(path)
    threads = Threads(seed, 6, ["kept", "forgetful"], True, log)
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(0.05)
    threads.join(20)
    print(json.dumps({"counts": log.counts, "unexpected": log.unexpected}))


if __name__ == "__main__":
    main()
