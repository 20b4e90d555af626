"""Several independent servers that grant together: what a majority says, holds.

To plans and keepers a quorum is one more server. Each step goes to all of them at once, under the
same token, and the answers are counted. No queue: who finds no majority gives back what it got, and
tries again after a random while.

What keeps this safe: any two majorities share a server, and a server grants to one token at a time.
Belief ends with the earliest lease of the longest-lived majority. Servers are asked for DRIFT more
than the holder believes in, so that clocks may run apart by so much.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from redis import exceptions as errors

from ..protocol.plans import Answer, Failure, Run, Step, Wait, undoing_at
from . import connections
from .keeper import keeper
from .wire import clock
