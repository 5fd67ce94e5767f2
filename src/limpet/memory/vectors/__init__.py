"""Semantic search: embedders, stored vectors, and fusion with the results of text search.

Only `vector_index`, `vector_store`, `semantic_search` and `minilm` need numpy. They are imported
only when an embedder is configured.
"""
