"""A camera or radio fills a ring of frames in host memory, and the GPU works on each frame where it arrived.

A slot may be overwritten only after the GPU is done with it: `synchronize` of its own wrapped buffer tells that.
It needs torch.
"""

import threading
from queue import Queue

import numpy as np
from _where import need, torch_device

import dlwrap

torch = need("torch")
SLOTS, SAMPLES, FRAMES = 4, 4096, 10


def produce(ring: np.ndarray, free: Queue, filled: Queue) -> None:
    """Be the driver of the device: write frame after frame into the slots that are free."""
    time = np.arange(SAMPLES) / SAMPLES
    for frame in range(FRAMES):
        slot = free.get()
        ring[slot] = np.exp(2j * np.pi * (100 + frame) * time)  # a tone that rises
        filled.put((frame, slot))
    filled.put(None)


def main() -> None:
    """Find the tone of each frame, while the next ones are written."""
    device = torch_device()
    ring = dlwrap.zeros((SLOTS, SAMPLES), np.complex64)  # page-locked once; each slot's wrap is free
    buffers = [dlwrap.wrap(slot) for slot in ring]
    tensors = [torch.from_dlpack(each) if device == "cuda" else torch.from_numpy(each.array) for each in buffers]
    free, filled = Queue(), Queue()
    for slot in range(SLOTS):
        free.put(slot)
    thread = threading.Thread(target=produce, args=(ring, free, filled))
    thread.start()
    while (item := filled.get()) is not None:
        frame, slot = item
        spectrum = torch.fft.fft(tensors[slot]).abs()
        buffers[slot].synchronize()  # the GPU has read the slot
        free.put(slot)
        print(f"frame {frame} in slot {slot}: tone {int(spectrum.argmax())}")
    thread.join()
    del tensors
    for buffer in buffers:
        buffer.close()


if __name__ == "__main__":
    main()
