"""The passes over the updates: evidence, sums, trimmed means. Nothing here knows a prior."""
