"""Rows that come one after the other and whose number nobody knows: standard input, and text files."""
