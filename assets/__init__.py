"""The Dagster assets, one file per family: what each is, how it is made, what its page shows, what
is checked.
"""
