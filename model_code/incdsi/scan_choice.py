"""Which scan the settings ask for."""

from __future__ import annotations

from model_code.incdsi.compressed import CompressedScan
from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.passes import Scan
from model_code.incdsi.scans import DeviceScan, HostScan
from model_code.settings import require


def scan(rows: GrowingRows, device: str, precision: str) -> Scan:
    """The scan that the settings ask for; torch is imported only if it is needed.

    Raises SettingsError for bfloat16 on a CPU that would only emulate it.
    """
    if device == "cpu" and precision != "bfloat16":
        return _host_scan(rows, precision)
    from model_code.encoding.hardware import has_bfloat16, pick_device

    chosen = pick_device(device)
    if chosen.type == "cpu" and precision != "bfloat16":
        return _host_scan(rows, precision)
    require(
        precision != "bfloat16" or has_bfloat16(chosen),
        f"precision is bfloat16, but {chosen} does not multiply it in hardware and would be slower: choose float32",
    )
    return DeviceScan(rows, str(chosen), precision)


def _host_scan(rows: GrowingRows, precision: str) -> Scan:
    if precision == "float32":
        return HostScan(rows)
    return CompressedScan(rows)
