"""The demo: the example site on two servers, real traffic, and a table of the results."""
