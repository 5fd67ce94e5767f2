"""Files beside the database, with which the processes that share a store coordinate."""
