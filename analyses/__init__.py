"""Analyses: one question a file, each writes a report."""
