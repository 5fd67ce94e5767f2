"""Frozen values that check themselves when they are made.

Messages, sessions, frames, events, commands, budgets, packs and memory records.
"""
