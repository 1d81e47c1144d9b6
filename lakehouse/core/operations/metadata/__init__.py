"""Operations on the metadata table of a table that users call: rebuild, validate, show (MDT-7)."""
