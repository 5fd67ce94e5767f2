"""A store on PostgreSQL: `postgresql://user@host/database`. Needs the extra: pip install "holdfast[postgres]"."""
