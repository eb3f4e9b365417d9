"""The stage table, running its stages through DVC, and what came of them."""
