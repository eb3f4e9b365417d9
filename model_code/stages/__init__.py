"""One module per pipeline stage: `run(context)` reads input folders, writes one output folder,
returns its report.
"""
