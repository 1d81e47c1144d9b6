"""The fast path for few records of the metadata table: plain values instead of Arrow kernels (MDT-4, MDT-5).

A kernel call costs some microseconds for any number of rows, and a small commit would make hundreds of calls. The
functions here return the same records as the general code; property tests compare both. Each entry function decides
whether it supports the records. If not, it returns None and the caller uses the general code.

    update     small_update                          the records that an action of few files writes
    look_up    small_listing, small_statistics       the records of few keys
    merge      small_merge                           the merged records of a small file group
"""
