"""The contract: what is demanded of whoever hands an array over, in one table.

A rule's identifier begins with its group. Where it is demanded is said in its source: the DLPack header or the array
API standard for all, a "dlwrap promise" for dlwrap alone. Which function checks it is found in `conformance.checks`.
"""

from __future__ import annotations

from conformance.results import Rule

_DLPACK = "array API standard 2024.12, __dlpack__"
_DEVICE = "array API standard 2024.12, __dlpack_device__"
_INTERCHANGE = "array API standard 2024.12, data interchange"
_HEADER = "DLPack 1.3 header"
_CAPSULES = "DLPack 1.3, Python specification"
_TABLE = "DLPack 1.3 header, DLPackExchangeAPI"
_PROMISE = "dlwrap promise"


def _rule(identifier: str, sentence: str, source: str, check: str) -> Rule:
    return Rule(identifier, identifier.partition(".")[0], sentence, source, check)


def _dtype(name: str) -> Rule:
    return _rule(
        f"dtypes.{name}",
        f"An array of {name} arrives as {name}.",
        f"{_HEADER}, DLDataType",
        "Take seven different values; compare the name of the element type, and every byte.",
    )


_PROTOCOL = (
    _rule(
        "protocol.device-pair",
        "__dlpack_device__() gives a pair of integers: type and number.",
        _DEVICE,
        "Call it; look at the length of the tuple and the types.",
    ),
    _rule(
        "protocol.keywords",
        "__dlpack__ takes stream, max_version, dl_device and copy by keyword, and None for each.",
        _DLPACK,
        "Ask with all four as None; it has to give a capsule.",
    ),
    _rule(
        "protocol.no-arguments",
        "Asked without arguments it gives a legacy capsule, named dltensor.",
        f"{_DLPACK}, max_version",
        "Ask without arguments, as TensorFlow, MLX and others do; look at the capsule's name.",
    ),
    _rule(
        "protocol.version-zero",
        "A consumer that knows only versions before 1.0 gets a legacy capsule.",
        f"{_DLPACK}, max_version",
        "Ask with max_version=(0, 8); look at the capsule's name.",
    ),
    _rule(
        "protocol.versioned",
        "A consumer that knows version 1.0 gets a versioned capsule, named dltensor_versioned.",
        f"{_DLPACK}, max_version",
        "Ask with max_version=(1, 0); look at the capsule's name.",
    ),
    _rule(
        "protocol.version-major",
        "A versioned tensor says that its major version is 1.",
        f"{_HEADER}, DLPackVersion",
        "Ask with max_version=(1, 3); read version.major.",
    ),
    _rule(
        "protocol.version-newer",
        "A consumer from the future gets a capsule of a version that exists.",
        f"{_DLPACK}, max_version",
        "Ask with max_version=(9, 9); read version.major.",
    ),
    _rule(
        "protocol.version-minor",
        "The minor version is never above the one that was asked for.",
        f"{_PROMISE}: the capsule's version is the lesser of both",
        "Ask with max_version=(1, 0); read version.minor.",
    ),
    _rule(
        "protocol.flags-known",
        "No flag is set that DLPack 1.3 does not name.",
        f"{_HEADER}, DLManagedTensorVersioned.flags",
        "Ask with max_version=(1, 3); look at the bits above the third.",
    ),
    _rule(
        "protocol.destructor",
        "The capsule has a destructor.",
        f"{_INTERCHANGE}: the producer sets a destructor that calls the deleter",
        "Read the destructor of both kinds of capsule.",
    ),
    _rule(
        "protocol.fresh-capsule",
        "Each call gives a tensor of its own, since each is consumed once.",
        f"{_INTERCHANGE}: consumed exactly once",
        "Ask twice; compare the addresses of the two managed tensors.",
    ),
    _rule(
        "protocol.same-in-both",
        "Both kinds of capsule describe the same array.",
        f"{_HEADER}, DLTensor",
        "Ask for both; compare address, device, shape, strides and element type.",
    ),
    _rule(
        "protocol.deleter",
        "There is a deleter.",
        f"{_PROMISE}: the header allows none, but JAX calls it unseen",
        "Read the deleter of both kinds of capsule.",
    ),
    _rule(
        "protocol.manager-context",
        "There is a manager context.",
        f"{_PROMISE}: the header allows none, but Paddle never releases such a tensor",
        "Read manager_ctx of both kinds of capsule.",
    ),
    _rule(
        "protocol.byte-offset",
        "The byte offset is zero: a consumer that ignores it reads the right elements.",
        f"{_PROMISE}: old torch, Warp, Paddle and ONNX Runtime ignore it",
        "Take a view from the middle of an array; read byte_offset, and the values without it.",
    ),
    _rule(
        "protocol.strides-present",
        "A tensor with dimensions always has strides.",
        f"{_HEADER}, DLTensor.strides: not NULL from version 1.2 on",
        "Take a compact array in a versioned capsule; look at the pointer.",
    ),
    _rule(
        "protocol.stream-untold",
        "On CUDA, stream may be None, and -1 for no synchronisation at all.",
        f"{_DLPACK}, stream",
        "Ask with None and with -1.",
    ),
    _rule(
        "protocol.stream-default",
        "On CUDA, 1 is the legacy and 2 the per-thread default stream.",
        f"{_DLPACK}, stream",
        "Ask with 1 and with 2.",
    ),
    _rule(
        "protocol.stream-handle",
        "On CUDA, the handle of a stream is taken.",
        f"{_DLPACK}, stream",
        "Make a stream by the driver; ask with its handle.",
    ),
    _rule(
        "protocol.stream-zero",
        "On CUDA, stream 0 is refused, because it is ambiguous.",
        f"{_DLPACK}, stream: 0 is disallowed",
        "Ask with 0; it has to raise.",
    ),
    _rule(
        "protocol.stream-negative",
        "On CUDA, a stream below -1 is refused.",
        f"{_DLPACK}, stream: not below -1",
        "Ask with -2; it has to raise.",
    ),
    _rule(
        "protocol.stream-not-an-integer",
        "A stream that is no integer is refused with TypeError, and so is a bool.",
        f"{_PROMISE}: README, streams",
        "Ask with 1.5, True and an object.",
    ),
    _rule(
        "protocol.stream-on-host",
        "On the CPU only stream=None is accepted.",
        f"{_DLPACK}, stream: on CPU only None",
        "Ask for the CPU with stream=1; it has to raise.",
    ),
)

_EXCHANGE = (
    _rule(
        "exchange.table",
        "The type has __dlpack_c_exchange_api__, a capsule named dlpack_exchange_api.",
        _TABLE,
        "Look it up on the type, not on the object; look at the name.",
    ),
    _rule(
        "exchange.version",
        "The table has major version 1, and its chain of older tables ends.",
        f"{_TABLE}Header",
        "Read the header; follow prev_api.",
    ),
    _rule(
        "exchange.functions",
        "No function is missing that the header demands.",
        _TABLE,
        "Look at the four pointers that must not be NULL.",
    ),
    _rule(
        "exchange.export",
        "The table exports the same array as __dlpack__.",
        f"{_TABLE}, managed_tensor_from_py_object_no_sync",
        "Export by both; compare address, device, shape, strides and element type.",
    ),
    _rule(
        "exchange.view",
        "The table's view, which owns nothing, shows the same array.",
        f"{_TABLE}, dltensor_from_py_object_no_sync",
        "View it; compare with __dlpack__.",
    ),
    _rule(
        "exchange.import",
        "The table makes an object of a tensor, over the same memory.",
        f"{_TABLE}, managed_tensor_to_py_object_no_sync",
        "Export by the table, give the tensor back, and compare what the new object exports.",
    ),
    _rule(
        "exchange.allocate",
        "The table allocates a tensor of the shape, type and device asked for.",
        f"{_TABLE}, managed_tensor_allocator",
        "Allocate float32 of shape (3, 4) without the interpreter's lock; read its fields, then delete it.",
    ),
    _rule(
        "exchange.allocate-error",
        "An allocation that fails tells exactly one error, and gives no tensor.",
        f"{_TABLE}, managed_tensor_allocator: SetError exactly when it fails",
        "Ask for an element type that no code names; count the errors told.",
    ),
    _rule(
        "exchange.work-stream",
        "The table gives the stream to work on; for the CPU that need be none.",
        f"{_TABLE}, current_work_stream",
        "Ask for the producer's device, and for the CPU, where NULL has to come back.",
    ),
    _rule(
        "exchange.ownership",
        "A tensor that the table exported keeps the memory.",
        f"{_TABLE}, managed_tensor_from_py_object_no_sync: an owning tensor",
        "Export, drop everything else; the memory has to be there, with its values.",
    ),
)

_DEVICES = (
    _rule(
        "device.matches",
        "The tensor is on the device that __dlpack_device__ names.",
        _DEVICE,
        "Compare the two.",
    ),
    _rule(
        "device.arrives",
        "The framework finds the array on the device that it was given.",
        f"{_HEADER}, DLDevice",
        "Take it; ask the framework for the device, as far as it tells.",
    ),
    _rule(
        "device.own",
        "Asked for its own device, it gives that.",
        f"{_DLPACK}, dl_device",
        "Ask with dl_device=__dlpack_device__().",
    ),
    _rule(
        "device.other",
        "A device that cannot be served is refused with BufferError.",
        f"{_DLPACK}, dl_device",
        "Ask for device number 99, and for a Vulkan device.",
    ),
    _rule(
        "device.cuda",
        "A wrapped array is CUDA memory, type 2, in both memory kinds.",
        f"{_PROMISE}: torch refuses the types 3 and 13",
        "Take it page-locked and pageable, as far as the driver can; read the device.",
    ),
    _rule(
        "device.host-view",
        "Asked for the CPU, it gives the array itself, at its host address.",
        f"{_PROMISE}: CPU views",
        "Ask with dl_device=(1, 0); read device and address.",
    ),
    _rule(
        "device.unnumbered",
        'Device number 255 means any: that is how torch asks for device="cuda".',
        f"{_PROMISE}: torch.from_dlpack(x, device='cuda')",
        "Ask with dl_device=(2, 255).",
    ),
)

_DTYPES = (
    *map(
        _dtype,
        (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
            "complex64",
            "complex128",
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
        ),
    ),
    _rule(
        "dtypes.float8-others",
        "Each other float8 type of DLPack 1.3 arrives under its own code.",
        f"{_HEADER}, DLDataTypeCode",
        "Take one array of each that ml_dtypes has; read code and bits.",
    ),
    _rule(
        "dtypes.lanes",
        "Plain elements have one lane.",
        f"{_HEADER}, DLDataType.lanes",
        "Take arrays of float32 and complex64; read lanes.",
    ),
    _rule(
        "dtypes.byte-order",
        "An array in foreign byte order is refused with BufferError.",
        f"{_HEADER}, DLDataType: native byte order, an explicit error otherwise",
        "Hand over an array in the other byte order.",
    ),
    _rule(
        "dtypes.no-numbers",
        "Types that DLPack has no name for are refused with BufferError.",
        f"{_DLPACK}: BufferError if it cannot be exported",
        "Hand over arrays of text, dates, records and objects.",
    ),
)

_SHAPES = (
    _rule("shapes.zero-d", "An array without dimensions arrives.", f"{_HEADER}, DLTensor.ndim", "Take it; read it."),
    _rule(
        "shapes.empty",
        "An array without elements arrives with its shape.",
        f"{_HEADER}, DLTensor.shape",
        "Take an array of shape (3, 0, 2).",
    ),
    _rule(
        "shapes.empty-pointer",
        "A tensor without elements has no address.",
        f"{_HEADER}, DLTensor.data: NULL for size zero",
        "Take an array of shape (3, 0, 2); read data.",
    ),
    _rule(
        "shapes.size-one",
        "Dimensions of one element arrive as they are.",
        f"{_HEADER}, DLTensor.shape",
        "Take an array of shape (1, 5, 1).",
    ),
    _rule(
        "shapes.row-major",
        "A compact array in row-major order arrives with its shape.",
        f"{_HEADER}, DLTensor.strides",
        "Take an array of shape (3, 4).",
    ),
    _rule(
        "shapes.column-major",
        "A compact array in column-major order arrives with its shape.",
        f"{_HEADER}, DLTensor.strides",
        "Take an array of shape (3, 4) in Fortran order.",
    ),
    _rule(
        "shapes.transposed",
        "A transposed array arrives with its shape.",
        f"{_HEADER}, DLTensor.strides",
        "Take an array of shape (2, 3, 4), its axes turned.",
    ),
    _rule(
        "shapes.strided",
        "An array with gaps arrives with its shape.",
        f"{_HEADER}, DLTensor.strides",
        "Take every second row and every third column.",
    ),
    _rule(
        "shapes.offset",
        "A block from the middle of an array arrives with its shape.",
        f"{_HEADER}, DLTensor.data and byte_offset",
        "Take the inner block of an array.",
    ),
    _rule(
        "shapes.broadcast",
        "A row that is repeated by a stride of zero arrives as often as it is repeated.",
        f"{_HEADER}, DLTensor.strides",
        "Take a row, repeated three times.",
    ),
    _rule(
        "shapes.many-dimensions",
        "An array of six dimensions arrives.",
        f"{_HEADER}, DLTensor.ndim",
        "Take an array of shape (2, 1, 3, 1, 2, 2).",
    ),
    _rule(
        "shapes.reversed",
        "A reversed array arrives right, or is refused with BufferError.",
        f"{_HEADER}, DLTensor.strides",
        "Hand over a[::-1]. torch aborts the process if it is exported.",
    ),
    _rule(
        "shapes.odd-strides",
        "Strides that are no whole number of elements are refused with BufferError.",
        f"{_HEADER}, DLTensor.strides: in elements",
        "Hand over the 4-byte fields of records of 6 bytes.",
    ),
    _rule(
        "shapes.misaligned",
        "Elements that do not lie at a multiple of their size are refused with BufferError.",
        f"{_PROMISE}: a GPU faults on them",
        "Hand over float32 at an odd address.",
    ),
    _rule(
        "shapes.large",
        "An array of more than 2**31 elements arrives whole.",
        f"{_HEADER}, DLTensor.shape: 64 bits",
        "Take 2**31 + 8 bytes; compare the shape, and the last four.",
    ),
)

_DATA = (
    _rule(
        "data.values",
        "The framework reads the values that the array had.",
        f"{_INTERCHANGE}: the data of x",
        "Take 16 numbers; compare every byte.",
    ),
    _rule(
        "data.address",
        "The framework's array lies at the array's own address: nothing was copied.",
        f"{_INTERCHANGE}: zero-copy if possible",
        "Compare the address of the first element with what the driver, or the host, says.",
    ),
    _rule(
        "data.host-writes",
        "What the host writes after the import is what the framework reads.",
        f"{_INTERCHANGE}: y may be a view of x",
        "Take it, write other numbers to the array, and read by the framework.",
    ),
    _rule(
        "data.framework-writes",
        "What the framework writes is what the host reads.",
        f"{_INTERCHANGE}: y may be a view of x",
        "Take it, write other numbers by the framework, and read the array.",
    ),
    _rule(
        "data.neighbours",
        "The framework writes to the elements of a view, and to nothing between them.",
        f"{_HEADER}, DLTensor.strides",
        "Take every second row and every fourth column; write by the framework; look at the whole parent.",
    ),
)

_READ_ONLY = (
    _rule(
        "readonly.flag",
        "A read-only array is flagged so.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_READ_ONLY",
        "Ask for a versioned capsule of a read-only array; read the flag.",
    ),
    _rule(
        "readonly.flag-clear",
        "A writable array is not flagged read-only.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_READ_ONLY",
        "Ask for a versioned capsule; read the flag.",
    ),
    _rule(
        "readonly.legacy",
        "A read-only array is not given in a legacy capsule, which cannot say so.",
        f"{_HEADER}, DLManagedTensor has no flags; {_DLPACK}: BufferError if it cannot be exported",
        "Ask for a legacy capsule of a read-only array; it has to raise BufferError.",
    ),
    _rule(
        "readonly.opt-in",
        "wrap(a, readonly=False) gives a read-only array to consumers that know no read-only tensors.",
        f"{_PROMISE}: README, limits",
        "Wrap it so; ask for a legacy capsule.",
    ),
    _rule(
        "readonly.respected",
        "A framework does not write to a read-only array: it is refused, or marked, or writing fails.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_READ_ONLY",
        "Take a read-only array, if that is possible at all; ask whether it is writable, else try.",
    ),
    _rule(
        "readonly.writable",
        "A writable array arrives writable.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_READ_ONLY",
        "Take an array; ask whether it is writable, as far as the framework tells.",
    ),
)

_COPY = (
    _rule(
        "copy.default",
        "With copy=None the array is shared where it can be.",
        f"{_DLPACK}, copy: the existing buffer if possible",
        "Ask with copy=None; compare the address.",
    ),
    _rule(
        "copy.false",
        "With copy=False nothing is copied.",
        f"{_DLPACK}, copy",
        "Ask with copy=False; compare the address.",
    ),
    _rule(
        "copy.true",
        "With copy=True other memory is given.",
        f"{_DLPACK}, copy",
        "Ask with copy=True; compare the address.",
    ),
    _rule(
        "copy.values",
        "A copy has the values of the array.",
        f"{_DLPACK}, copy",
        "Ask with copy=True; compare every byte.",
    ),
    _rule(
        "copy.flag",
        "A copy is flagged as one.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_IS_COPIED",
        "Ask with copy=True for a versioned capsule; read the flag.",
    ),
    _rule(
        "copy.flag-clear",
        "What is no copy is not flagged as one.",
        f"{_HEADER}, DLPACK_FLAG_BITMASK_IS_COPIED",
        "Ask with copy=None for a versioned capsule; read the flag.",
    ),
)

_OWNERSHIP = (
    _rule(
        "ownership.legacy-deleter",
        "The deleter of a legacy tensor gives the memory back.",
        f"{_HEADER}, DLManagedTensor.deleter",
        "Consume a legacy capsule, drop everything else, call the deleter; the array has to go.",
    ),
    _rule(
        "ownership.unconsumed",
        "A capsule that nobody consumed gives the memory back, also if a consumer looked into it and failed.",
        f"{_INTERCHANGE}: the destructor calls the deleter of a tensor that was not consumed",
        "Drop both kinds of capsule, untouched, and between looking and renaming; the array has to go.",
    ),
    _rule(
        "ownership.consumed-capsule",
        "The end of a consumed capsule does nothing to the tensor.",
        f"{_INTERCHANGE}: not of one that was renamed",
        "Consume a capsule and drop the capsule; the memory has to be there, with its values.",
    ),
    _rule(
        "ownership.several",
        "Each of several exports keeps the memory.",
        f"{_INTERCHANGE}: consumed exactly once",
        "Consume three capsules, drop everything else, call two deleters; the memory has to be there.",
    ),
    _rule(
        "ownership.foreign-thread",
        "The deleter works on a thread that Python never saw.",
        f"{_HEADER}, deleter: nothing is said of the thread",
        "Call it on a thread of pthreads; the array has to go.",
    ),
    _rule(
        "ownership.without-gil",
        "The deleter does not wait for the interpreter's lock.",
        f"{_PROMISE} 1: nothing blocks in a deleter",
        "Call it on a foreign thread while another one keeps the lock; it has to return within a second.",
    ),
    _rule(
        "ownership.refused",
        "An export that is refused leaves nothing behind.",
        f"{_DLPACK}: BufferError if it cannot be exported",
        "Ask for a device that cannot be served, drop everything; the array has to go.",
    ),
    _rule(
        "ownership.pending-error",
        "The end of a capsule leaves an error that is being raised as it was.",
        f"{_CAPSULES}: the destructor saves the error that is set",
        "Drop an unconsumed capsule while an error is set; the error has to be set still.",
    ),
)

_LIFETIME = (
    _rule(
        "lifetime.outlives",
        "The framework's array keeps the memory when producer and host array are gone.",
        f"{_INTERCHANGE}: the producer keeps the memory until the deleter is called",
        "Take it, drop everything else; the memory has to be there, with its values.",
    ),
    _rule(
        "lifetime.released",
        "When the framework's array is gone too, the memory is given back.",
        f"{_INTERCHANGE}: the consumer calls the deleter",
        "Take it, drop everything; the host array has to go.",
    ),
    _rule(
        "lifetime.after-the-gpu",
        "The memory is kept while the GPU works on it, on the stream that the framework works on.",
        f"{_PROMISE}: wait, then unregister, then drop",
        "Hold that stream with work on the array, drop everything; the array has to stay.",
    ),
    _rule(
        "lifetime.untold-stream",
        "The memory is kept while the GPU works on it, on a stream that nobody told.",
        f"{_PROMISE}: README, streams",
        "Ask with stream=-1, hold another stream with work on the array, drop everything; the array has to stay.",
    ),
    _rule(
        "lifetime.destroyed-stream",
        "The memory is kept while the GPU works on it, on a stream that is destroyed meanwhile.",
        f"{_PROMISE} 4: a destroyed stream is never touched",
        "Tell a stream, hold it with work, destroy it, drop everything; the array has to stay.",
    ),
    _rule(
        "lifetime.several-streams",
        "The memory is kept while the GPU works on it, on the first of two streams that were told.",
        f"{_PROMISE}: README, streams",
        "Export on two streams, hold the first with work, drop everything; the array has to stay.",
    ),
    _rule(
        "lifetime.dropped-first",
        "A consumer may drop the tensor before it launches, if the wrapped buffer outlives its call.",
        f"{_PROMISE}: the wrapper is a holder too",
        "Ask without a stream, drop the tensor, launch work, drop the buffer; the array has to stay.",
    ),
    _rule(
        "lifetime.never-blocks",
        "Dropping the last user does not wait for the GPU.",
        f"{_PROMISE} 1: deleting never blocks",
        "Hold the stream that was told with work; time the end of tensor and buffer.",
    ),
    _rule(
        "lifetime.nothing-launched",
        "Nothing is launched on the consumer's stream: no kernel, no copy, no callback, no wait.",
        f"{_PROMISE} 2",
        "Count the driver calls that submit something, from wrap to release.",
    ),
    _rule(
        "lifetime.capture-owns",
        "A graph that captured the use of the memory owns it.",
        f"{_PROMISE}: README, CUDA graphs",
        "Export on a capturing stream, end the capture, drop all but the graph; the array has to stay.",
    ),
    _rule(
        "lifetime.capture-unbroken",
        "Wrap, export and release break no capture that is open on another stream.",
        f"{_PROMISE} 3; CUDA driver manual, cuStreamBeginCapture",
        "Do all of it within a capture in global mode, telling no stream; the capture has to end well.",
    ),
    _rule(
        "lifetime.context-kept",
        "The thread's current context is as it was.",
        f"{_PROMISE} 7; CUDA driver manual, cuCtxGetCurrent",
        "Do all of it on a thread without a current context.",
    ),
    _rule(
        "lifetime.close-refuses",
        "close() refuses with BufferError while something made from the buffer is alive.",
        f"{_PROMISE} 6",
        "Export, close.",
    ),
    _rule(
        "lifetime.close-times-out",
        "close(timeout) raises TimeoutError while the GPU works on the memory.",
        f"{_PROMISE} 6",
        "Hold a stream with work, drop the export, close with a timeout.",
    ),
    _rule(
        "lifetime.closed",
        "A closed buffer refuses to be exported with BufferError, and the array can be wrapped again.",
        f"{_PROMISE}: README, API",
        "Close, export, wrap the same array, and take it.",
    ),
)

_EXIT = (
    _rule(
        "exit.alive",
        "A program may end with the framework's array alive.",
        f"{_HEADER}, deleter: nothing is said of when",
        "Keep it in a module, and end; status 0, and no word of a failure.",
    ),
    _rule(
        "exit.deleter-after-python",
        "The deleter may be called after the interpreter is gone.",
        f"{_HEADER}, deleter: nothing is said of when",
        "Call it from an exit handler of C; status 0.",
    ),
    _rule(
        "exit.never-deleted",
        "A program may end without the deleter having been called.",
        f"{_HEADER}, deleter: nothing is said of when",
        "Consume a capsule, forget it, and end; status 0.",
    ),
    _rule(
        "exit.pending-work",
        "A program may end while the GPU works on the memory: it neither hangs, nor is the memory freed.",
        f"{_PROMISE} 5: leak rather than dangle",
        "Hold a stream with work on the array, and end; status 0, within the time limit.",
    ),
    _rule(
        "exit.fork",
        "In a forked child a buffer can be dropped, and wrap raises RuntimeError.",
        f"{_PROMISE}: README, limits",
        "Wrap, fork, drop and wrap in the child; status 0 of both.",
    ),
)

RULES: tuple[Rule, ...] = (
    *_PROTOCOL,
    *_EXCHANGE,
    *_DEVICES,
    *_DTYPES,
    *_SHAPES,
    *_DATA,
    *_READ_ONLY,
    *_COPY,
    *_OWNERSHIP,
    *_LIFETIME,
    *_EXIT,
)
BY_ID = {rule.id: rule for rule in RULES}
