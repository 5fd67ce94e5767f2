"""Background work: the worker, leases, cursors, and one module for each group of tasks."""
