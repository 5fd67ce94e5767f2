"""Pure rules and values: no I/O, no clock, no randomness, no threads.

Imports nothing from the rest of Limpet but `errors` and `limits`.
"""
