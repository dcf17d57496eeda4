#include "executor/cpu/csrc/gather_scatter.h"

#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace gradc {
namespace {

constexpr int64_t most_picked = 32768; // beyond, ATen's threads share them

// ---- running

bool are_places(const int64_t* places, const Picks& picks) {
  return std::all_of(places, places + picks.rows * picks.count, [&](int64_t place) { return place >= 0 && place < picks.length; });
}

template <class T>
void call_pick(const Step& step, Frame& frame) {
  const auto& picks = payload_as<Picks>(step.exact.payload);
  const auto* places = static_cast<const int64_t*>(memory_at(frame, picks.places));
  if (!are_places(places, picks)) {
    return call_as_eager(step, frame); // which raises
  }
  at::Tensor result = result_memory(step, frame);
  auto* out = static_cast<T*>(result.mutable_data_ptr());
  const auto* row = static_cast<const T*>(memory_at(frame, picks.table));
  for (int64_t i = 0; i < picks.rows; ++i, row += picks.length, places += picks.count) {
    out = std::transform(places, places + picks.count, out, [row](int64_t place) { return row[place]; });
  }
  frame.slots[step.outs[0]] = std::move(result);
}

template <class T>
void add_picked(T* row, const T* added, const int64_t* places, const Picks& picks) {
  for (int64_t i = 0; i < picks.rows; ++i, row += picks.length) {
    for (int64_t j = 0; j < picks.count; ++j) {
      row[*places++] += *added++;
    }
  }
}

template <class T>
void call_add_picked(const Step& step, Frame& frame) {
  const auto& picks = payload_as<Picks>(step.exact.payload);
  const auto* places = static_cast<const int64_t*>(memory_at(frame, picks.places));
  if (!are_places(places, picks)) {
    return call_as_eager(step, frame);
  }
  at::Tensor result = result_memory(step, frame);
  auto* out = static_cast<T*>(result.mutable_data_ptr());
  std::copy_n(static_cast<const T*>(memory_at(frame, picks.table)), picks.rows * picks.length, out);
  add_picked(out, static_cast<const T*>(memory_at(frame, picks.added)), places, picks);
  frame.slots[step.outs[0]] = std::move(result);
}

// ---- preparing

// Whether this machine's ATen adds in the order of the places.
template <class T>
bool adds_picked_as_aten() {
  constexpr auto dtype = c10::CppTypeToScalarType<T>::value;
  return prove({"picked numbers added up", dtype}, [](TrialNumbers numbers) {
    const int64_t rows = 7, count = 61, length = 5;
    const auto places = at::arange(rows * count, at::kLong).mul_(7).remainder_(length).view({rows, count});
    const auto added = numbers({rows, count}, dtype), table = numbers({rows, length}, dtype);
    auto out = table.clone();
    add_picked(
        out.template mutable_data_ptr<T>(), added.template const_data_ptr<T>(), places.template const_data_ptr<int64_t>(),
        Picks{0, 0, 0, rows, length, count});
    return have_same_bits(out, table.scatter_add(1, places, added));
  });
}

template <class T>
Kernel add_picked_of() {
  return adds_picked_as_aten<T>() ? &call_add_picked<T> : nullptr;
}

// Rows of `table` and of `places` that belong together, all side by side in memory.
std::optional<Picks> picks_by(const Plan& plan, const Operand& table, const Operand& dimension, const Operand& places) {
  const Meta *rows = meta_at(plan, table), *index = meta_at(plan, places);
  const auto given = int_at(plan, dimension);
  if (!rows || !index || !given || rows->sizes.size() < 2 || rows->sizes.size() != index->sizes.size() ||
      index->dtype != c10::ScalarType::Long || !has_plain_strides(*rows) || !has_plain_strides(*index)) {
    return {};
  }
  const auto last = static_cast<int64_t>(rows->sizes.size()) - 1;
  if ((*given != last && *given != -1) || !std::equal(rows->sizes.begin(), rows->sizes.end() - 1, index->sizes.begin()) ||
      num_bytes(*rows) == 0 || num_bytes(*index) == 0) {
    return {};
  }
  if (c10::multiply_integers(rows->sizes) > most_picked || c10::multiply_integers(index->sizes) > most_picked) {
    return {};
  }
  const int64_t length = rows->sizes.back(), count = index->sizes.back();
  return Picks{table.index, places.index, -1, c10::multiply_integers(rows->sizes) / length, length, count};
}

bool is_laid_out_as(const Meta& meta, const std::vector<int64_t>& sizes, c10::ScalarType dtype) {
  return meta.sizes == sizes && meta.dtype == dtype && has_plain_strides(meta);
}

Kernel pick_of(c10::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 4:
      return &call_pick<uint32_t>;
    case 8:
      return &call_pick<uint64_t>;
    default:
      return nullptr;
  }
}

Exact find_pick(const Plan& plan, const Step& step) {
  const Meta* result = result_meta(plan, step);
  const auto picks = picks_by(plan, step.operands[0], step.operands[1], step.operands[2]);
  if (!result || !picks || !is_laid_out_as(*result, plan.metas[picks->places]->sizes, plan.metas[picks->table]->dtype)) {
    return {};
  }
  return {pick_of(result->dtype), nullptr, {}, *picks};
}

Kernel add_picked_by(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return add_picked_of<float>();
    case c10::ScalarType::Double:
      return add_picked_of<double>();
    default:
      return nullptr;
  }
}

Exact find_add_picked(const Plan& plan, const Step& step) {
  const Meta *result = result_meta(plan, step), *added = meta_at(plan, step.operands[3]);
  auto picks = picks_by(plan, step.operands[0], step.operands[1], step.operands[2]);
  if (!result || !picks || !added || !is_laid_out_as(*added, plan.metas[picks->places]->sizes, result->dtype) ||
      !is_laid_out_as(*result, plan.metas[picks->table]->sizes, plan.metas[picks->table]->dtype)) {
    return {};
  }
  picks->added = step.operands[3].index;
  return {add_picked_by(result->dtype), nullptr, {}, *picks};
}

} // namespace

std::vector<KernelRow> pick_kernels() {
  return {{{"aten::gather"}, &find_pick}, {{"aten::scatter_add"}, &find_add_picked}};
}

} // namespace gradc
