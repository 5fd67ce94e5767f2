"""Frames: units of work with a goal, a token budget, tools and suspensions."""
