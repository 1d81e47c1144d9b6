"""Declarations of the commands: names, flags and help texts.

These modules import little; the code of each command is in `lakehouse.cli`.
"""
