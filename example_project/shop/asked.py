"""Read the fields of a visitor's form."""

from collections.abc import Mapping

from django.http import HttpRequest

SLOWEST = 60.0


def seconds_of(asked: Mapping[str, str], usual: float) -> float:
    """Return the field `seconds`, or `usual` if the field is invalid."""
    try:
        seconds = float(asked.get("seconds", ""))
    except ValueError:
        return usual
    return seconds if 0 <= seconds <= SLOWEST else usual


def text_of(request: HttpRequest, field: str) -> str:
    """Return a field's text, shortened, or "somebody"."""
    text = "".join(char for char in request.POST.get(field, "") if char.isprintable())
    return text.strip()[:100] or "somebody"
