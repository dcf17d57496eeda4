#include "executor/cpu/csrc/cat.h"

#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <c10/core/WrapDimMinimal.h>

#include <cstring>
#include <utility>
#include <vector>

namespace gradc {
namespace {

void call_cat(const Payload& payload, void* out, const void* const* inputs) {
  const auto& parts = payload_as<Parts>(payload);
  auto* next = static_cast<std::byte*>(out);
  for (int64_t row = 0; row < parts.count; ++row) {
    for (size_t i = 0; i < parts.bytes.size(); ++i) {
      const size_t size = parts.bytes[i];
      copy_bytes(next, static_cast<const std::byte*>(inputs[i]) + row * size, size);
      next += size;
    }
  }
}

// Its rows along `dimension` lie side by side, and it is as the result but for its length there.
bool is_part(const Meta& part, const Meta& result, size_t dimension) {
  auto sizes = part.sizes;
  if (sizes.size() != result.sizes.size() || part.dtype != result.dtype || !num_bytes(part) || !has_plain_strides(part)) {
    return false;
  }
  sizes[dimension] = result.sizes[dimension];
  return sizes == result.sizes;
}

Exact find_cat(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  if (!result || result->sizes.empty() || !has_plain_strides(*result) || num_bytes(*result) > most_moved_bytes ||
      step.operands[0].kind != Operand::Kind::pack) {
    return {};
  }
  const auto& items = plan.packs[step.operands[0].index].items;
  const auto given = int_at(plan, step.operands[1]);
  if (items.size() > most_direct_inputs || !given) {
    return {};
  }
  const auto dimension = c10::maybe_wrap_dim(*given, static_cast<int64_t>(result->sizes.size()));
  Parts parts{1, {}};
  for (int64_t i = 0; i < dimension; ++i) {
    parts.count *= result->sizes[i];
  }
  for (const Operand& item : items) {
    const Meta* part = meta_at(plan, item);
    if (!part || !is_part(*part, *result, dimension)) {
      return {};
    }
    parts.bytes.push_back(num_bytes(*part) / parts.count);
  }
  std::vector<Index> inputs;
  for (const Operand& item : items) {
    inputs.push_back(item.index);
  }
  return call_directly(step, &call_cat, std::move(parts), std::move(inputs));
}

} // namespace

std::vector<KernelRow> cat_kernels() {
  return {{{"aten::cat"}, &find_cat}};
}

} // namespace gradc
