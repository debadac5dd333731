"""Crowds: tables of ratings, in which each party rated only some of the tasks."""
