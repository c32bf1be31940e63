// A tiny extension: an array that nanobind imported, and what nanobind says of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;

// Holds the import.
struct Array {
    nb::ndarray<> array;
};

static nb::tuple as_tuple(const Array &self, const int64_t *extents) {
    nb::list list;
    for (size_t i = 0; i < self.array.ndim(); i++) {
        list.append(extents[i]);
    }
    return nb::tuple(list);
}

NB_MODULE(nanobind_extension, module) {
    nb::class_<Array>(module, "Array")
        .def_prop_ro("ptr", [](const Array &self) { return (uintptr_t)self.array.data(); })
        .def_prop_ro("shape", [](const Array &self) { return as_tuple(self, self.array.shape_ptr()); })
        .def_prop_ro("strides", [](const Array &self) { return as_tuple(self, self.array.stride_ptr()); })
        .def_prop_ro("device",
                     [](const Array &self) {
                         return nb::make_tuple(self.array.device_type(), self.array.device_id());
                     })
        .def_prop_ro("dtype", [](const Array &self) {
            const auto dtype = self.array.dtype();
            return nb::make_tuple((int)dtype.code, (int)dtype.bits, (int)dtype.lanes);
        });
    // Of any type, shape and device; nanobind refuses read-only memory here.
    module.def("take", [](nb::ndarray<> array) { return Array{std::move(array)}; }, nb::arg().noconvert());
}
