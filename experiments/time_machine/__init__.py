"""The time machine: replay dated streams of documents, and compare ways to keep an index fresh."""
