"""Full-text search over everything a user said or was told (`lp.archive`).

A search brings the index up to date first, ranks messages by terms, and by meaning if an embedder
is configured. `HitContext` reads the messages around a hit. `ArchiveTool` offers both to a model.
"""
