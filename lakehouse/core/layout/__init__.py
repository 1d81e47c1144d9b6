"""The differences between table versions: paths, names, encodings, and how a file belongs to a file slice.

Other packages use a `TableLayout` and compare no version numbers. `layout_v6` is version 6, `layout_v8` is versions 8
and 9. A new version is one module and one entry in `registry`.
"""
