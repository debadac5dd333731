"""Studies of accuracy beyond the paper's: each is run with `python -m`, and writes its data."""
