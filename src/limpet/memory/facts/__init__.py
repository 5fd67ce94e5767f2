"""Facts about users for the built-in memory engine: extraction by rules, storage and ranking."""
