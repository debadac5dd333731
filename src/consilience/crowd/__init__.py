"""Crowds: tables of ratings, in which each party has seen only some of the tasks."""
