"""The demo: the example site under two servers, real traffic, and a table of what it showed."""
