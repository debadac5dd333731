"""Engines: where the two passes over the updates run, when not over arrays in this process."""
