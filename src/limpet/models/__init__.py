"""Language models that Limpet may ask: the port, and adapters. Nothing here is needed to keep state."""
