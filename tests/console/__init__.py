"""Tests of the console in a real browser."""
