"""Tests of locks, semaphores, and leases on real Redis servers, in sync and in async code. Some
tests break servers and connections."""
