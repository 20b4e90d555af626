"""A small site whose views have limits of every kind."""
