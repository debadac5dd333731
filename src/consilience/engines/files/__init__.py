"""Models in files: formats, reading in pieces, and an output that appears whole."""
