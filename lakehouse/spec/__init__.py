"""Declarations by users (table specs, options, services) and contracts between processes.

Imports only light packages.
"""
