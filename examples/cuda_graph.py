"""A CUDA graph reads what the host array holds at each replay, and owns the array; needs a GPU and torch."""

import numpy as np
from _where import need, need_gpu

import dlwrap


def main() -> None:
    """Replay one graph on three contents of an array."""
    need_gpu()
    torch = need("torch")
    array = np.zeros(1_000_000, dtype=np.float32)
    result = torch.zeros((), device="cuda")
    torch.sum(torch.zeros(8, device="cuda"), dim=0, out=result)  # so that nothing is loaded in the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Neither the buffer nor the tensor is kept: the graph owns the array.
        torch.sum(torch.from_dlpack(dlwrap.wrap(array)), dim=0, out=result)
    print(f"graphs that own memory: {dlwrap.stats().graphs}")
    for value in (1, 2, 3):
        array[:] = value  # no replay runs just now
        graph.replay()
        torch.cuda.synchronize()
        print(f"sum {result.item():.0f}")
    graph.reset()
    del graph
    print("the array is ours again")


if __name__ == "__main__":
    main()
