"""Each reason of a rejection has a sentence, and so has an unknown reason."""

import pytest

from django_redis_sync.protocol.reasons import REASONS, Rejection


@pytest.mark.parametrize("word", [*REASONS, "asleep {now}"])
def test_known_or_unknown_reason_has_a_sentence(word: str) -> None:
    rejection = Rejection(word, detail="3")
    assert word == rejection.why.word
    assert str(rejection) and ("{" in word) == ("{" in str(rejection))
