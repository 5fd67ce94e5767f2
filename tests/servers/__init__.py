"""Real servers from wheels, for tests and benchmarks: no root, no Docker, nothing left behind."""
