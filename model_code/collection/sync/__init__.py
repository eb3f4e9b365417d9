"""Keep the live index equal to a source, and receive files from an inbox folder."""
