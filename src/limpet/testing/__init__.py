"""Helpers for proving a Limpet store: the contract suite, a generated corpus, a faulty store,
and what providers demand of a request.

Import the module you need (`from limpet.testing import corpus`); importing this package
loads nothing else.
"""
