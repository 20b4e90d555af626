"""Is this Redis fit for locks? Each finding says the fact, why it matters, and the remedy."""

from .examining import examine
from .findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
