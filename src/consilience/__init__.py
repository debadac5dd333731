"""Consilience: infer the truth from sources nobody can vouch for."""

__version__ = "0.1.0"
