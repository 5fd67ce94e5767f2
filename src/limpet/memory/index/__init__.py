"""Inverted index of the archive: one owner's messages by term, stored in an index store."""
