"""The implementation of the commands: one module for each command group.

`program` imports a module of this package only when one of its commands runs.
"""
