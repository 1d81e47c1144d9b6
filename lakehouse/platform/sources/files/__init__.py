"""The source `files`: find, choose and read files of a folder or bucket."""
