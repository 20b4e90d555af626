"""A small Django site for tests, whose views have request limits of every kind."""
