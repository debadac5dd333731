"""Engines: where the two passes over the updates run."""
