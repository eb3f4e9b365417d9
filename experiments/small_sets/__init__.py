"""What few judged questions bring, by their number."""
