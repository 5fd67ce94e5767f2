"""The archive: an inverted index over what was said, one owner at a time, on the shelf."""
