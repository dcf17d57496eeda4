// Matrix products, straight to the BLAS that torch itself calls.
//
// ATen decides by the strides which factor is transposed and whether the factors change places; the same decision is made
// here once, when the plan is made (tests/executor/test_direct.py compares the bits over layouts and sizes).
#pragma once

#include "executor/core/csrc/devices.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gradc {

// Of a step that BLAS makes.
std::vector<KernelRow> product_kernels();

// What is added to a product: a row, to each of its own, or a matrix.
enum class Addend : uint8_t { none, row, matrix };

// That of an addmm, where neither it nor the product is scaled and it is a whole row or matrix of the result's.
std::optional<Addend> addend_of(const Plan& plan, const Step& step);

// True if float32 products are full float32 products in the present settings.
bool has_full_precision();

} // namespace gradc
