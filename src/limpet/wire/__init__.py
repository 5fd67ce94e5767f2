"""Values to bytes and back, and provider formats in. Nothing here decides. Start with `codec.py`."""
