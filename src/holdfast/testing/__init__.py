"""Helpers for proving a Holdfast store: the contract suite, a generated corpus, a faulty store,
and what providers demand of a request.

Import the module you need (`from holdfast.testing import corpus`); importing this package
loads nothing else.
"""
