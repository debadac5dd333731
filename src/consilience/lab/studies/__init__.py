"""Studies beyond the paper's experiments: each is run with `python -m`, and writes its data."""
