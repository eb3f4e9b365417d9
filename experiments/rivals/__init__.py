"""Other libraries' retrievers with their own trainers, beside Freshet's."""
