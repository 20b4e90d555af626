"""Tools for developing this project; not part of the package."""
