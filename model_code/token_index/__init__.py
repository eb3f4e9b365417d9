"""The binary token index: postings of the tokens of every passage, built by the tokenizer alone."""
