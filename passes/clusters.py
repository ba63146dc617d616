"""How many CTAs of a kernel run together as a cluster, as its text says."""

from __future__ import annotations

from emmy.dialects import async_copy, tile


def cluster_of(kernel: tile.KernelOp) -> int:
    """CTAs of a cluster of the kernel: those that share a sum (level 2) or a pipeline (level 3); 1 if none do."""
    sizes = [1]
    for op in kernel.block.ops:
        if isinstance(op, tile.ClusterSumOp):
            sizes.append(op.parts.value.data)
        elif isinstance(op, async_copy.PipelineOp) and op.cluster is not None:
            sizes.append(op.cluster.value.data)
    return max(sizes)
