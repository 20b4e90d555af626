"""`rejected` counts each rejected call once."""

from __future__ import annotations

import time

import pytest

from .both import both
from .test_faults import bench  # noqa: F401
from .test_lost_count import LATE, count_of


@pytest.mark.promise(22)
@pytest.mark.parametrize("harm", ["cut", "drop"])
@both
async def test_rejected_counts_a_call_once_if_its_reply_is_cut(io, bench, harm) -> None:  # noqa: F811
    await bench.warm(io)
    async with io.entered(bench.lock()):
        bench.proxy.harm(harm)
        assert not await io.do(bench.lock(), "acquire", False)
        assert [harm] == bench.proxy.done
    time.sleep(LATE)
    assert 1 == count_of("x", "rejected", bench.alias), "one rejected call is counted once"
    assert 1 == count_of("x", "granted", bench.alias)
