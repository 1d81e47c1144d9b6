"""Nouns: frozen values of the Hudi format. Standard library only; nothing here opens, decides or formats bytes."""
