"""The exam: examine any lock or semaphore under the same faults, and observe it from outside.

Run `python -m exam --help`. Only exam/adapters/ours.py needs other parts of this repository.
"""
