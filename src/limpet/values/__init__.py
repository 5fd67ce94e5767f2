"""Frozen values: messages, sessions, events, commands, frames. No clock, no randomness, no I/O."""
