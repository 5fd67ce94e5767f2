"""Erasure of users, sessions and messages from the log and from everything derived from it."""
