"""The time machine: replay dated documents and queries, and compare ways to keep an index fresh."""
