"""Administration: the log, checks, backup, migration, export, import, retention and erasure."""
