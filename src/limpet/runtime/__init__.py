"""Carries every request from a caller to the log and answers it.

The engine loads state, lets the rules of `core` decide, appends the events to the store, and keeps
its caches up to date. The capability packages (`sessions`, `frames`, `jobs` and others) build on
it.
"""
