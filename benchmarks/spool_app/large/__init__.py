"""A federation of large models, to see how much memory its server takes."""
