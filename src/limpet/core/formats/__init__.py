"""Conversion of values to and from stored bytes, provider formats and files of other programs.

Nothing that is read here is executed or imported. The modules are imported one by one: a program
that only stores messages does not load the renderers.
"""
