"""Find the tables below a place, report the support for each, and register them in a catalog.

    discover   list the folders level by level; the root of a table stops the descent
    examine    read properties and timeline of each Hudi table, and run the checks of reads, writes and services
    propose    a name and policies, from the facts of the table
    register   enter the supported tables with these policies; a repeated call does the rest

A scan reads only. It opens no data file.
"""
