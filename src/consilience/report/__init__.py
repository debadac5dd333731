"""The page that shows whom to trust, and why: made from a record, once or while it grows.

The page is one file that loads nothing else: script, style, charts and data are in it. The data are
the lines of the record; the page itself evaluates them (run.js, findings.js).
"""
