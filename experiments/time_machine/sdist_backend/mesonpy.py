"""A build backend that only answers pip's question for metadata.

`pip download` of a source distribution calls the build backend that the distribution names. The
four packages name "mesonpy". This module takes its place, so that no code of the package runs and
no compiler is needed. It copies the metadata that the distribution already contains.
"""

from __future__ import annotations

from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, str] | None = None
) -> str:
    """Copy `PKG-INFO` into a folder of metadata, as PEP 517 asks for it.

    Args:
        metadata_directory: Folder to write to.
        config_settings: Ignored.

    Returns:
        Name of the folder that was written.
    """
    metadata = Path("PKG-INFO").read_text(encoding="utf-8")
    values: dict[str, str] = {}
    for line in metadata.splitlines():
        key, separator, value = line.partition(": ")
        if not separator:
            break
        values.setdefault(key, value)

    name = f"{values['Name'].replace('-', '_')}-{values['Version']}.dist-info"
    folder = Path(metadata_directory) / name
    folder.mkdir()
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    (folder / "WHEEL").write_text(WHEEL, encoding="utf-8")
    return name
