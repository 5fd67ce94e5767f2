"""Search by meaning: texts to vectors, vectors on the shelf, one order out of several. Needs numpy."""
