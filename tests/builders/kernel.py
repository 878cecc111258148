"""What the kernel in the Python client of Delta Sharing reads without any server."""

from pathlib import Path

import pyarrow as pa


def read_by_the_kernel(place: Path) -> pa.Table:
    """The rows of a local Delta table."""
    import delta_kernel_rust_sharing_wrapper as kernel

    interface = kernel.PythonInterface(place.as_uri())
    scan = kernel.ScanBuilder(kernel.Table(place.as_uri()).snapshot(interface)).build()
    batches = list(scan.execute(interface))
    return pa.Table.from_batches(batches) if batches else pa.table({})
