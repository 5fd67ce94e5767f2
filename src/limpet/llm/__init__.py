"""Language models that Limpet can ask for summaries and facts. None is needed to keep state."""
