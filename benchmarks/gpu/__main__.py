"""Pack the input of the GPU measurements, or run them.

`python -m benchmarks.gpu pack --data SQUAD --output FOLDER` writes at most 60 MiB.
`python -m benchmarks.gpu run --input FOLDER --output FILE` measures, and writes JSON after each
part.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu.run import PARTS, run


def main() -> None:
    """Read the command line, and pack or run."""
    parser = argparse.ArgumentParser(description="GPU measurements of Freshet.")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write the input of the measurements")
    packing.add_argument("--data", type=Path, required=True, help="folder of SQuAD")
    packing.add_argument("--output", type=Path, required=True, help="folder to write")
    running = commands.add_parser("run", help="measure on this machine")
    running.add_argument("--input", type=Path, required=True, help="the packed folder")
    running.add_argument("--output", type=Path, required=True, help="JSON file to write")
    running.add_argument("--seconds", type=float, default=540, help="time for everything")
    running.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    options = parser.parse_args()

    if options.command == "pack":
        from benchmarks.gpu.pack import pack

        size = pack(options.data, options.output)
        print(f"{options.output}: {size / 2**20:.1f} MiB")
        return
    sys.exit(run(options.input, options.output, options.seconds, options.parts))


if __name__ == "__main__":
    main()
