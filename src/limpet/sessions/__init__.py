"""Sessions: manager, handles, windows, time travel, recovery, and the stateless form."""
