"""What a model sees: prioritised items fitted into a token budget.

Windows of sessions and packs of frames are two ways to build the items of one fitting mechanism.
"""
