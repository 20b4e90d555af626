"""The exam: any lock or semaphore, put through the same faults and judged from outside.

`python -m exam --help`; how to bring a lock of your own: docs/exam-adapters.md.
"""
