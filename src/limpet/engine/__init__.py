"""Joins the rooms: loads, decides, appends, answers. Start with `engine.py`."""
