"""Token counting: exact where a vocabulary is public, a stated estimate elsewhere.

`for_model` and `named` return a `Counter`. The public place of these names is `limpet.tokens`.
"""
