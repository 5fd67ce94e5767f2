"""What a model sees: one mechanism that fits prioritised items into a token budget, and windows made with it."""
