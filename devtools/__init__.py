"""Tools for the development of this project. They are not part of the package."""
