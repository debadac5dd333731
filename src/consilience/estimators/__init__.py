"""Estimators: evidence in, beliefs out."""
