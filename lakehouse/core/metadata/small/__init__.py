"""The fast path for few records of the metadata table: plain values instead of Arrow kernels (MDT-4, MDT-5).

A call of a kernel costs some microseconds for any number of rows, and a small commit would make hundreds of calls. The
functions here give the records that the general code gives; property tests compare both. Each door decides itself
whether it takes the records, and returns None if it does not: the caller then uses the general code.

    update     small_update                          the records that an action of few files writes
    look_up    small_listing, small_statistics       the records of few keys
    merge      small_merge                           the merged records of a small file group
"""
