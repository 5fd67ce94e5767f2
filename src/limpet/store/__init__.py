"""Where the log lives: the port with its promises, and one adapter per backend. Start with `port.py`."""
