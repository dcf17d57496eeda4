#include "executor/cpu/csrc/slice_backward.h"

#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace gradc {
namespace {

constexpr size_t fewest_whole = 256; // bytes of a part: fewer are not worth a call

// Bytes `begin` to `end` of a part: zeros, the block at `start`, zeros.
void put_bytes(std::byte* out, const std::byte* block, size_t start, size_t size, size_t begin, size_t end) {
  const size_t first = std::clamp(start, begin, end), last = std::clamp(start + size, begin, end);
  std::memset(out + begin, 0, first - begin);
  if (first < last) {
    copy_bytes(out + first, block + (first - start), last - first);
  }
  std::memset(out + last, 0, end - last);
}

// Where the blocks of a part are one.
void call_padded_whole(const Payload& payload, void* out, const void* const* inputs) {
  const auto& padded = payload_as<Padded>(payload);
  const size_t size = padded.length * padded.bytes;
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(inputs[0]);
  at::parallel_for(0, static_cast<int64_t>(padded.count * padded.part), most_moved_bytes, [&](size_t begin, size_t end) {
    for (size_t part = begin / padded.part; part * padded.part < end; ++part) {
      const size_t at = part * padded.part;
      put_bytes(to + at, from + part * size, padded.start, size, std::max(begin, at) - at, std::min(end, at + padded.part) - at);
    }
  });
}

void call_padded(const Payload& payload, void* out, const void* const* inputs) {
  const auto& padded = payload_as<Padded>(payload);
  auto* begin = static_cast<std::byte*>(out);
  const auto* in = static_cast<const std::byte*>(inputs[0]);
  std::memset(begin, 0, padded.count * padded.part);
  const size_t next = padded.is_one ? 0 : padded.bytes;
  for (int64_t part = 0; part < padded.count; ++part) {
    for (int64_t i = 0; i < padded.length; ++i, in += next) {
      copy_bytes(begin + part * padded.part + padded.start + i * padded.step, in, padded.bytes);
    }
  }
}

// All its elements are one in memory, as those of an expanded number.
bool is_repeated(const Meta& meta) {
  return std::all_of(meta.strides.begin(), meta.strides.end(), [](int64_t stride) { return stride == 0; });
}

template <bool is_slice>
Exact find_padded(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  const Meta* gradient = meta_at(plan, step.operands[0]);
  const auto dimension_given = int_at(plan, step.operands[2]);
  if (!result || !gradient || !dimension_given || result->sizes.empty() || gradient->dtype != result->dtype ||
      !has_plain_strides(*result) || !num_bytes(*result) || !num_bytes(*gradient)) {
    return {};
  }
  const auto dimension = c10::maybe_wrap_dim(*dimension_given, static_cast<int64_t>(result->sizes.size()));
  const int64_t size = result->sizes[dimension];
  const auto start = start_at(plan, step.operands[3], size);
  const auto apart = is_slice ? int_at(plan, step.operands[5]) : std::optional<int64_t>(1);
  if (!start || !apart) {
    return {};
  }
  const size_t inner = result->strides[dimension] * c10::elementSize(result->dtype);
  Padded padded;
  padded.length = is_slice ? gradient->sizes[dimension] : 1;
  padded.part = size * inner;
  padded.count = static_cast<int64_t>(num_bytes(*result) / padded.part);
  padded.start = *start * inner;
  padded.step = *apart * inner;
  padded.bytes = inner;
  padded.is_one = is_repeated(*gradient) && inner == c10::elementSize(result->dtype);
  if (!padded.is_one && !has_plain_strides(*gradient)) {
    return {};
  }
  const bool is_whole = !padded.is_one && (padded.length == 1 || padded.step == padded.bytes);
  if (!(is_whole && padded.part >= fewest_whole) && num_bytes(*result) > most_moved_bytes) {
    return {};
  }
  return call_directly(step, is_whole ? &call_padded_whole : &call_padded, padded, slots_at(step, {0}));
}

} // namespace

std::optional<int64_t> start_at(const Plan& plan, const Operand& operand, int64_t size) {
  const bool is_none = plan.is_constant(operand, &c10::IValue::isNone);
  const auto given = is_none ? std::optional<int64_t>(0) : int_at(plan, operand);
  return given ? std::optional(std::clamp<int64_t>(*given < 0 ? *given + size : *given, 0, size)) : std::nullopt;
}

std::vector<KernelRow> padded_kernels() {
  return {{{"aten::slice_backward"}, &find_padded<true>}, {{"aten::select_backward"}, &find_padded<false>}};
}

} // namespace gradc
