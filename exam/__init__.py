"""The exam: run locks and semaphores under the same faults, and check if each keeps its promises.

Run `python -m exam --help`. Only exam/adapters/ours.py needs other parts of this repository.
"""
