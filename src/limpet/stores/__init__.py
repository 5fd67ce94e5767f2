"""The log and everything kept beside it: the store port and its backends.

A store keeps bytes. It does not know what a message is.
"""
