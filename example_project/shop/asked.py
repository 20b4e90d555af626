"""What a visitor asked for, within reason."""

from collections.abc import Mapping

from django.http import HttpRequest

SLOWEST = 60.0


def seconds_of(asked: Mapping[str, str], usual: float) -> float:
    """The field `seconds`; anything odd is the usual time."""
    try:
        seconds = float(asked.get("seconds", ""))
    except ValueError:
        return usual
    return seconds if 0 <= seconds <= SLOWEST else usual


def text_of(request: HttpRequest, field: str) -> str:
    """A short text of a form, or "somebody"."""
    text = "".join(char for char in request.POST.get(field, "") if char.isprintable())
    return text.strip()[:100] or "somebody"
