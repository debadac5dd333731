"""Models in files: formats, pieces, and the output that appears whole."""
