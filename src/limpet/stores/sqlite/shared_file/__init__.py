"""Files beside the database, and what the processes that share a store do with them."""
