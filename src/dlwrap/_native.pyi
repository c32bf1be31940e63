from collections.abc import Callable
from typing import Any, TypeVar

import numpy.typing as npt
from typing_extensions import CapsuleType, Self

_E = TypeVar("_E", bound=Exporter)

class Layout:
    array: npt.NDArray[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    owner: npt.NDArray[Any]
    hold: object
    pointer: int
    stop: int
    owner_start: int
    owner_stop: int
    owner_pointer: int
    itemsize: int
    nbytes: int
    owner_nbytes: int
    readonly: bool
    writable_memory: bool
    file_backed: bool
    def __new__(
        cls,
        array: npt.NDArray[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: tuple[int, int, int],
        itemsize: int,
        nbytes: int,
        readonly: bool,
        pointer: int,
        stop: int,
        owner_start: int,
        owner_stop: int,
        owner: npt.NDArray[Any],
        owner_pointer: int,
        owner_nbytes: int,
        writable_memory: bool,
        file_backed: bool,
        hold: object,
    ) -> Self: ...

class Exporter:
    @property
    def _layout(self) -> Any: ...
    @property
    def exports(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def device(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def make_capsule(exporter: Exporter, minor: int, on_host: bool, copied: bool, /) -> CapsuleType: ...
def give_up(exporter: Exporter, /) -> int: ...
def hold_by_graph(exporter: Exporter, create: int, retain: int, release: int, graph: int, /) -> tuple[int, int]: ...
def graphs_of(exporter: Exporter, /) -> int: ...
def uses_of(exporter: Exporter, /) -> int: ...
def note_uses(exporter: Exporter, uses: int, /) -> None: ...
def learn_driver(current_context: int, current_device: int, device_attribute: int, /) -> None: ...
def current_device() -> tuple[int, int]: ...
def attribute(number: int, device: int, /) -> tuple[int, int]: ...
def learn_arrays(
    made: type[Layout],
    array: npt.NDArray[Any],
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    base: object,
    dtype: object,
    flags: int,
    /,
) -> bool: ...
def read_array(array: npt.NDArray[Any], dtype: tuple[int, int, int], /) -> Any: ...
def lend(
    made: type[_E], layout: Layout, key: int, device_pointer: int, device: int, readonly: bool, primary: int, /
) -> _E: ...
def exchange_api() -> CapsuleType: ...
def serve_exchange(
    allocate: Callable[..., object], import_tensor: Callable[..., object], find_work_stream: Callable[[int], int], /
) -> None: ...
def settle_work_stream(exchange_api: CapsuleType | None, is_capturing: int, modules: int, /) -> None: ...
def wait(seconds: float, /) -> list[tuple[int, int]]: ...
def wake() -> None: ...
def record(is_capturing: int, event_record: int, stream: int, event: int, /) -> tuple[int, bool]: ...
def register(host_register: int, pointer: int, nbytes: int, flags: int, results: list[tuple[int]], /) -> None: ...
def live_exports() -> int: ...
def live_graphs() -> int: ...
def leak(kept: object, /) -> None: ...
