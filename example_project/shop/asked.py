"""Read the fields of a visitor's form."""

from collections.abc import Mapping

from django.http import HttpRequest

SLOWEST = 60.0


def seconds_of(asked: Mapping[str, str], usual: float) -> float:
    """Return the number in the field `seconds`, or `usual` if it is missing or not in 0 to 60."""
    try:
        seconds = float(asked.get("seconds", ""))
    except ValueError:
        return usual
    return seconds if 0 <= seconds <= SLOWEST else usual


def text_of(request: HttpRequest, field: str) -> str:
    """Return up to 100 printable characters of a field, or "somebody" if the field is empty."""
    text = "".join(char for char in request.POST.get(field, "") if char.isprintable())
    return text.strip()[:100] or "somebody"
