"""The locks under examination. locks.ini lists them, and the modules of this folder use them."""
