"""Nouns: frozen values of the Hudi format. Nothing here opens, decides or formats bytes.

The standard library is all they need, but for patterns, which are RE2's.
"""
