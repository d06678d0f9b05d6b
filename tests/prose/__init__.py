"""The prose check: plain English in docstrings, comments, messages, and Markdown."""
