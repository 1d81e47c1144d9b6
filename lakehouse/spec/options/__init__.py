"""Typed options: one policy (a frozen dataclass) and one module per concern.

Each option is declared once: field, key, default, one sentence. The parser, error messages, `lakehouse options` and the
options table of the documentation are derived from these declarations. Keys are Hudi's where Hudi has one; keys of this
project start with `lakehouse.`.
"""
