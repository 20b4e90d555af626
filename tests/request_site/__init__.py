"""A small site whose views are limited in every way there is."""
