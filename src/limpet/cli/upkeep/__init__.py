"""Commands about a store as a whole: from one place to another, and what may go from it."""
