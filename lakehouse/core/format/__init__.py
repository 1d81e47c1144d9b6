"""Encode and decode the bytes of the format. Works on bytes and file objects; opens no path."""
