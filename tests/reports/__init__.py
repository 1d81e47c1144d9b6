"""Tests of public bug reports of Hudi and its peers, one module per class of fault."""
