"""What things are: frozen values without clocks, randomness or I/O. Start with `message.py`."""
