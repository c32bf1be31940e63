"""A worker process writes batches into shared memory, and the GPU reads them there: no pickling, no copy.

It needs torch.
"""

from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from _where import need, torch_device

import dlwrap

ROWS, COLUMNS, BATCHES = 1024, 256, 3


def work(name: str, jobs, done) -> None:
    """Be the worker: fill the block with each batch that is asked for. It touches no CUDA."""
    block = SharedMemory(name)
    array = np.ndarray((ROWS, COLUMNS), np.float32, block.buf)
    while (batch := jobs.get()) is not None:
        array[:] = batch + np.arange(ROWS, dtype=np.float32)[:, None] / ROWS
        done.put(batch)
    del array
    block.close()


def main() -> None:
    """Have batches made, and sum each on the GPU."""
    torch = need("torch")
    device = torch_device()
    processes = get_context("spawn")  # not fork: CUDA does not survive it
    block = SharedMemory(create=True, size=ROWS * COLUMNS * 4)
    jobs, done = processes.SimpleQueue(), processes.SimpleQueue()
    worker = processes.Process(target=work, args=(block.name, jobs, done))
    worker.start()
    array = np.ndarray((ROWS, COLUMNS), np.float32, block.buf)
    with dlwrap.wrap(array) as buffer:  # page-locked in this process, once
        tensor = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(array)
        for batch in range(BATCHES):
            jobs.put(batch)
            done.get()
            # .item() waits for the GPU: only then may the worker write again.
            print(f"batch {batch}: mean {tensor.double().mean().item():.4f}")
        del tensor
    jobs.put(None)
    worker.join()
    del array, buffer
    block.close()
    block.unlink()


if __name__ == "__main__":
    main()
