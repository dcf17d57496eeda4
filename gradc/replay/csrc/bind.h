// The bindings of this room: gradc._C.Recording, made from a gradc.replay RecordingSpec, Recordings, and replay.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gradc {

void bind_replay(pybind11::module_& module);

} // namespace gradc
