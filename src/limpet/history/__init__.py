"""The rules, pure: what a command makes happen and what events add up to. Start with `sessions.py`."""
