"""Long-term memory of users and the full-text archive of what was said.

Both are derived from the log and can be rebuilt from it. Every operation is about one user of one
tenant.
"""
