"""Helpers for proving stores, memory engines and code above them.

Import the module you need (`from limpet.testing import store_contract`). Importing this package loads nothing else.
"""
