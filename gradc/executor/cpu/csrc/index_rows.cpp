#include "executor/cpu/csrc/index_rows.h"

#include "executor/core/csrc/kernels.h"
#include "executor/core/csrc/prove.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/lengths.h"
#include "executor/cpu/csrc/loops.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/numbers.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

namespace gradc {
namespace {

constexpr int64_t most_by_columns = 128; // elements of a row that is taken: longer ones are copied by one call
constexpr int64_t most_added_serially = 32768; // beyond, ATen's threads share the additions

// ---- running

// True if each index names a row. Those from the end have `from_end` rows added.
GRADC_WIDE bool are_in_range(const int64_t* numbers, const Rows& rows) {
  const int64_t least = rows.may_count_from_end ? -rows.num_rows : 0, num_rows = rows.num_rows;
  int64_t num_wrong = 0; // counted, since a loop that may end early takes one at a time
  for (int64_t i = 0; i < rows.count; ++i) {
    num_wrong += numbers[i] < least || numbers[i] >= num_rows;
  }
  return num_wrong == 0;
}

int64_t row_of(int64_t number, const Rows& rows) {
  return number < 0 ? number + rows.num_rows : number;
}

template <class T>
using Vector __attribute__((vector_size(32), aligned(sizeof(T)), may_alias)) = T;
constexpr int num_vectors = 4;

// So many columns of each row as fill these vectors, from the first at `out` and `table` on.
template <class T>
GRADC_WIDE void take_columns(T* out, const T* table, const int64_t* numbers, const Rows& rows) {
  for (int64_t i = 0; i < rows.count; ++i, out += rows.size) {
    const auto* row = reinterpret_cast<const Vector<T>*>(table + row_of(numbers[i], rows) * rows.stride);
    auto* taken = reinterpret_cast<Vector<T>*>(out);
    for (int v = 0; v < num_vectors; ++v) {
      taken[v] = row[v];
    }
  }
}

template <class T>
constexpr int64_t columns_at_once = num_vectors * sizeof(Vector<T>) / sizeof(T);

// Rows of so few elements that none is worth a call. `rows` is a copy, as what is written might else change it for all one knows.
template <class T, int64_t size>
void take_short(T* __restrict out, const T* __restrict table, const int64_t* __restrict numbers, const Rows rows) {
  for (int64_t i = 0; i < rows.count; ++i, out += size) {
    const T* row = table + row_of(numbers[i], rows) * rows.stride;
    for (int64_t j = 0; j < size; ++j) {
      out[j] = row[j];
    }
  }
}

template <class T>
void take_rows(T* out, const T* table, const int64_t* numbers, const Rows& rows) {
  if (rows.size % columns_at_once<T> == 0 && rows.size <= most_by_columns) {
    for (int64_t column = 0; column < rows.size; column += columns_at_once<T>) {
      take_columns(out + column, table + column, numbers, rows);
    }
    return;
  }
  with_length(rows.size, [&](auto size) {
    if constexpr (is_constant<decltype(size)>) {
      take_short<T, size>(out, table, numbers, rows);
    } else {
      for (int64_t i = 0; i < rows.count; ++i, out += size) {
        std::copy_n(table + row_of(numbers[i], rows) * rows.stride, size, out);
      }
    }
  });
}

template <class T>
void call_take(const Step& step, Frame& frame) {
  const auto& rows = payload_as<Rows>(step.exact.payload);
  const auto* numbers = static_cast<const int64_t*>(memory_at(frame, rows.numbers));
  if (!are_in_range(numbers, rows)) {
    return call_as_eager(step, frame); // which raises, or has its own ideas
  }
  at::Tensor result = result_memory(step, frame);
  const auto* table = static_cast<const T*>(memory_at(frame, rows.table));
  take_rows(static_cast<T*>(result.mutable_data_ptr()), table, numbers, rows);
  frame.slots[step.outs[0]] = std::move(result);
}

// So many columns of each row as fill these vectors, from the first at `out` and `added` on.
template <class T>
GRADC_WIDE void add_columns(T* out, const T* added, const int64_t* numbers, const Rows& rows) {
  for (int64_t i = 0; i < rows.count;) {
    const int64_t number = numbers[i];
    auto* row = reinterpret_cast<Vector<T>*>(out + row_of(number, rows) * rows.stride);
    Vector<T> sums[num_vectors] = {row[0], row[1], row[2], row[3]};
    do { // while it is the same row
      const auto* more = reinterpret_cast<const Vector<T>*>(added);
      for (int v = 0; v < num_vectors; ++v) {
        sums[v] += more[v];
      }
      added += rows.size;
    } while (++i < rows.count && numbers[i] == number);
    for (int v = 0; v < num_vectors; ++v) {
      row[v] = sums[v];
    }
  }
}

template <class T, int64_t size>
void add_short(T* __restrict out, const T* __restrict added, const int64_t* __restrict numbers, const Rows rows) {
  for (int64_t i = 0; i < rows.count;) {
    const int64_t number = numbers[i];
    T* row = out + row_of(number, rows) * rows.stride;
    T sums[size];
    std::copy_n(row, size, sums);
    do { // while it is the same row
      for (int64_t j = 0; j < size; ++j) {
        sums[j] += added[j];
      }
      added += size;
    } while (++i < rows.count && numbers[i] == number);
    std::copy_n(sums, size, row);
  }
}

template <class T>
void add_rows(T* out, const T* added, const int64_t* numbers, const Rows& rows) {
  if (rows.size % columns_at_once<T> == 0) {
    for (int64_t column = 0; column < rows.size; column += columns_at_once<T>) {
      add_columns(out + column, added + column, numbers, rows);
    }
    return;
  }
  with_length(rows.size, [&](auto size) {
    if constexpr (is_constant<decltype(size)>) {
      add_short<T, size>(out, added, numbers, rows);
    } else {
      for (int64_t i = 0; i < rows.count; ++i, added += size) {
        T* row = out + row_of(numbers[i], rows) * rows.stride;
        for (int64_t j = 0; j < size; ++j) {
          row[j] += added[j];
        }
      }
    }
  });
}

template <class T>
void call_add(const Step& step, Frame& frame) {
  const auto& rows = payload_as<Rows>(step.exact.payload);
  const auto* numbers = static_cast<const int64_t*>(memory_at(frame, rows.numbers));
  if (!are_in_range(numbers, rows) || (rows.count * rows.size >= most_added_serially && at::get_num_threads() > 1)) {
    return call_as_eager(step, frame);
  }
  at::Tensor result = result_memory(step, frame);
  T* out = static_cast<T*>(result.mutable_data_ptr());
  std::memcpy(out, memory_at(frame, rows.table), num_bytes(*frame.plan.metas[step.outs[0]]));
  add_rows(out, static_cast<const T*>(memory_at(frame, rows.added)), numbers, rows);
  frame.slots[step.outs[0]] = std::move(result);
}

// ---- preparing

// Whether this machine's ATen adds in the order of the indices, by rows of each kind that add_rows() knows.
template <class T>
bool adds_as_aten() {
  constexpr auto dtype = c10::CppTypeToScalarType<T>::value;
  return prove({"rows added up", dtype}, [](TrialNumbers values) {
    const int64_t count = 61, sizes[] = {3, 19, columns_at_once<T>};
    const auto numbers = at::arange(count, at::kLong).mul_(7).remainder_(5);
    return std::all_of(std::begin(sizes), std::end(sizes), [&](int64_t size) {
      const auto added = values({count, size}, dtype), table = values({5, size}, dtype);
      auto out = table.clone();
      const Rows rows{0, 0, 0, 5, size, size, count, false};
      add_rows(
          out.template mutable_data_ptr<T>(), added.template const_data_ptr<T>(), numbers.template const_data_ptr<int64_t>(), rows);
      return have_same_bits(out, table.index_add(0, numbers, added)) && have_same_bits(out, table.index_put({numbers}, added, true));
    });
  });
}

template <class T>
Kernel add_of() {
  return adds_as_aten<T>() ? &call_add<T> : nullptr;
}

// The one index in the first place of an op's list of indices.
std::optional<Operand> only_index(const Plan& plan, const Operand& list) {
  if (list.kind != Operand::Kind::pack || plan.packs[list.index].items.size() != 1) {
    return {};
  }
  return plan.packs[list.index].items[0];
}

// Rows of `table` whose elements lie side by side, numbered by a tensor of integers.
std::optional<Rows> rows_by(const Plan& plan, const Operand& table, const Operand& numbers, bool may_count_from_end) {
  const Meta *rows = meta_at(plan, table), *index = meta_at(plan, numbers);
  if (!rows || !index || rows->sizes.empty() || index->dtype != c10::ScalarType::Long || !has_plain_strides(*index)) {
    return {};
  }
  const Meta row{rows->dtype, {rows->sizes.begin() + 1, rows->sizes.end()}, {rows->strides.begin() + 1, rows->strides.end()}};
  if (!has_plain_strides(row) || num_bytes(*rows) == 0 || num_bytes(*index) == 0) {
    return {};
  }
  return Rows{
      table.index, numbers.index, -1, rows->sizes[0], rows->strides[0], c10::multiply_integers(row.sizes),
      c10::multiply_integers(index->sizes), may_count_from_end};
}

// True if the sizes of `taken` are those of the index, then those of a row.
bool holds_rows(const Plan& plan, const Rows& rows, const Meta& taken) {
  auto sizes = plan.metas[rows.numbers]->sizes;
  const auto& table = plan.metas[rows.table]->sizes;
  sizes.insert(sizes.end(), table.begin() + 1, table.end());
  return taken.sizes == sizes && taken.dtype == plan.metas[rows.table]->dtype && has_plain_strides(taken);
}

Kernel take_of(c10::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 4:
      return &call_take<uint32_t>;
    case 8:
      return &call_take<uint64_t>;
    default:
      return nullptr;
  }
}

Exact take(const Plan& plan, const Step& step, const std::optional<Operand>& numbers, bool may_count_from_end) {
  const Meta* result = result_meta(plan, step);
  const auto rows = numbers ? rows_by(plan, step.operands[0], *numbers, may_count_from_end) : std::nullopt;
  if (!result || !rows || !holds_rows(plan, *rows, *result)) {
    return {};
  }
  return {take_of(result->dtype), nullptr, {}, *rows};
}

Kernel add_by(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return add_of<float>();
    case c10::ScalarType::Double:
      return add_of<double>();
    default:
      return nullptr;
  }
}

Exact add(
    const Plan& plan, const Step& step, const std::optional<Operand>& numbers, const Operand& added, bool may_count_from_end) {
  const Meta *result = result_meta(plan, step), *values = meta_at(plan, added), *table = meta_at(plan, step.operands[0]);
  auto rows = numbers ? rows_by(plan, step.operands[0], *numbers, may_count_from_end) : std::nullopt;
  const bool has_rows = rows && values && holds_rows(plan, *rows, *values);
  if (!result || !has_rows || !has_plain_strides(*table) || !has_plain_strides(*result)) {
    return {};
  }
  rows->added = added.index;
  return {add_by(table->dtype), nullptr, {}, *rows};
}

// ---- by op

Exact find_index(const Plan& plan, const Step& step) {
  return take(plan, step, only_index(plan, step.operands[1]), /*may_count_from_end=*/true);
}

Exact find_index_select(const Plan& plan, const Step& step) {
  const bool is_of_rows = int_at(plan, step.operands[1]) == 0;
  return is_of_rows ? take(plan, step, step.operands[2], /*may_count_from_end=*/false) : Exact();
}

Exact find_index_put(const Plan& plan, const Step& step) {
  const bool accumulates = plan.is_constant(step.operands[3], &c10::IValue::isBool) &&
      plan.constants[step.operands[3].index].boxed.toBool();
  return accumulates ? add(plan, step, only_index(plan, step.operands[1]), step.operands[2], /*may_count_from_end=*/true) : Exact();
}

Exact find_index_add(const Plan& plan, const Step& step) {
  const bool is_of_rows = int_at(plan, step.operands[1]) == 0 && int_at(plan, step.operands[4]) == 1;
  return is_of_rows ? add(plan, step, step.operands[2], step.operands[3], /*may_count_from_end=*/false) : Exact();
}

} // namespace

std::vector<KernelRow> row_kernels() {
  return {
      {{"aten::index.Tensor"}, &find_index},
      {{"aten::index_select"}, &find_index_select},
      {{"aten::index_put"}, &find_index_put},
      {{"aten::index_add"}, &find_index_add},
  };
}

} // namespace gradc
