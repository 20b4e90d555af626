"""The field suite: packages of other projects, used as their documentation says, with this library.

Each folder is a small Django project for one package:

- `rows.py`: data. PACKAGES, the distributions that the project needs. SETTINGS, the Django settings
  that it adds. ROWS, what must work, one `Row` for each line of docs/works-with.md.
- `urls.py`: the ROOT_URLCONF with the views. A row's `proof` is a function of this module, or of
  `tests.field.proofs`.

`child.py` runs the rows of a folder in a process of its own. `python -m tests.field.child FOLDER`
does the same by hand. `python -m tests.field.page` writes the page from all rows.
"""
