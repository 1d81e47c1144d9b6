"""Views of a table for readers of Apache Iceberg and Delta Lake, next to the data (as Apache XTable writes them).

    load    the view: its newest version, its mark (the writes that it contains) and the paths of its files
    plan    writes since the mark -> base files to add and to remove; without a usable mark, compare with the table
    read    the footers of the added files: rows, column bounds, partition values
    commit  one snapshot or version, created if absent; a lost race loads the view again

A view consists of metadata only: its data files are the base files of the table. The mark is part of the view, so a
deleted or copied view never disagrees with it. A run that stops before the commit leaves files that no reader opens.
"""
