"""Declarations of the commands: names, flags and texts. These modules are light; the code of a command is elsewhere."""
