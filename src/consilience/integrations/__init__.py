"""Consilience inside other people's frameworks. Each module needs the extra of its name."""
