"""Experiments: data, models, attacks, protocols, tables, figures."""
