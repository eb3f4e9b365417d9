"""The Dagster assets, one file per family.

Each file defines the specs, materializations, pages and checks of its assets.
"""
