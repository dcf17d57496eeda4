// The bindings of plans: gradc._C.Plan, and how a spec of Python's names where a symbol is read.
#pragma once

#include "executor/core/csrc/plan.h"

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>

namespace gradc {

// Where a symbol's value is read, as Python writes it: ("int" | "size" | "stride", position of the input, dimension).
using SymbolSpec = std::tuple<std::string, size_t, int64_t>;

// Raises a SpecError that says `where`, for another word.
SymbolSource::Kind symbol_kind(const std::string& kind, const std::string& where);

void bind_executor(pybind11::module_& module);

} // namespace gradc
