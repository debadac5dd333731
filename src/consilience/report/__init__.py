"""The page that shows whom to trust, and why: made from a record, once or while it grows.

The page is one file that asks nobody for anything: script, style, charts and data are in it. The
data are the record's own lines; what they amount to is found in the page (run.js, findings.js).
"""
