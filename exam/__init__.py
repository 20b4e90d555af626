"""The exam: any lock or semaphore, put through the same faults and observed from outside.

`python -m exam --help`. docs/exam-adapters.md says how to examine a lock of your own. The folder
needs no other part of its repository, apart from exam/adapters/ours.py.
"""
