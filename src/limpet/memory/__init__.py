"""Long-term memory: the port, the engine that is built in, and adapters to others."""
