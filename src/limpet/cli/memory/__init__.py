"""The commands about what was said and what is known: search, memory, worker."""
