"""Semantic search: embedders and stored vectors. Only `vector_store` and `minilm` need numpy."""
