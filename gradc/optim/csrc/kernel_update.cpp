#include "optim/csrc/kernel_update.h"

#include "csrc/sizes.h"
#include "csrc/streams.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace gradc {
namespace {

constexpr size_t size_of_head = 2 * sizeof(uint32_t);

// Bytes that are written one value after the other.
class Bytes {
 public:
  explicit Bytes(size_t size) : bytes_(size) {}

  template <class T>
  void write(T value) {
    std::memcpy(bytes_.data() + place_, &value, sizeof(value));
    place_ += sizeof(value);
  }
  void align() {
    place_ = (place_ + 7) / 8 * 8;
  }
  void* data() {
    return bytes_.data();
  }

 private:
  std::vector<char> bytes_;
  size_t place_ = 0;
};

} // namespace

KernelUpdate::KernelUpdate(std::vector<uint32_t> num_writes, CompiledUpdate compiled)
    : Update(std::move(num_writes)), compiled_(std::move(compiled)) {}

bool KernelUpdate::is_here(const at::Tensor& tensor) const {
  return tensor.device() == compiled_.kernel->device();
}

const char* KernelUpdate::why_not(const std::vector<Row>& rows) {
  if (is_captured(compiled_.kernel->device())) {
    return "stream that a graph is captured from";
  }
  std::vector<Place> places;
  places.reserve(rows.size() * num_operands());
  for (const Row& row : rows) {
    if (const char* reason = why_not_alike(row); *reason) {
      return reason;
    }
    if (row[0]->scalar_type() != compiled_.dtype) {
      return "parameters of several dtypes";
    }
    if (!are_equal(row[1]->strides(), row[0]->strides())) {
      return "gradient that is laid out otherwise than its parameter";
    }
    for (size_t i = 0; i < num_operands() && row[0]->numel() > 0; ++i) {
      const auto* begin = static_cast<const char*>(row[i]->const_data_ptr());
      places.push_back({begin, begin + row[i]->nbytes(), num_writes_[i] > 0});
    }
  }
  if (!are_apart(std::move(places))) {
    return "parameter, gradient and state that share memory";
  }
  return "";
}

// What is only read may be read twice.
bool KernelUpdate::are_apart(std::vector<Place> places) {
  if (places == known_apart_) {
    return true;
  }
  auto sorted = places;
  std::sort(sorted.begin(), sorted.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  const char *end_of_read = nullptr, *end_of_written = nullptr;
  for (const auto& [begin, end, is_written] : sorted) {
    if (begin < end_of_written || (is_written && begin < end_of_read)) {
      return false;
    }
    auto& own = is_written ? end_of_written : end_of_read;
    own = std::max(own, end);
  }
  known_apart_ = std::move(places);
  return true;
}

// It only starts the kernel.
bool KernelUpdate::takes_long(int64_t) const {
  return false;
}

void KernelUpdate::run(
    const std::vector<Row>& rows, const std::vector<std::vector<double>>& numbers, const std::vector<size_t>& number_of) {
  std::vector<const Row*> alike;
  for (size_t number = 0; number < numbers.size(); ++number) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (number_of.at(i) == number && rows[i][0]->numel() > 0) {
        alike.push_back(&rows[i]);
      }
      if (!alike.empty() && (alike.size() == compiled_.most_rows || i + 1 == rows.size())) {
        launch(alike, numbers[number]);
        alike.clear();
      }
    }
  }
  for (const Row& row : rows) {
    count_writes(row);
  }
}

void KernelUpdate::launch(const std::vector<const Row*>& rows, const std::vector<double>& numbers) const {
  const size_t size_of_row = num_operands() * sizeof(void*) + sizeof(int64_t) + 2 * sizeof(uint32_t);
  const size_t size_of_numbers = std::max<size_t>(compiled_.num_numbers, 1) * sizeof(double); // at most
  Bytes arguments(size_of_head + size_of_numbers + compiled_.most_rows * size_of_row);
  arguments.write(static_cast<uint32_t>(rows.size()));
  arguments.write(uint32_t{0});
  for (size_t i = 0; i < std::max<size_t>(compiled_.num_numbers, 1); ++i) {
    const double number = i < numbers.size() ? numbers[i] : 0.0;
    compiled_.dtype == at::kDouble ? arguments.write(number) : arguments.write(static_cast<float>(number));
  }
  arguments.align();
  int64_t num_blocks = 0;
  for (const Row* row : rows) {
    for (size_t i = 0; i < num_operands(); ++i) {
      arguments.write((*row)[i]->data_ptr());
    }
    const int64_t size = (*row)[0]->numel();
    arguments.write(size);
    arguments.write(static_cast<uint32_t>(num_blocks));
    arguments.write(uint32_t{0});
    num_blocks += (size + compiled_.elements_of_block - 1) / compiled_.elements_of_block;
  }
  TORCH_CHECK(num_blocks <= std::numeric_limits<int32_t>::max(), "gradc: a group has too many elements for one launch");
  compiled_.kernel->launch(static_cast<uint32_t>(num_blocks), compiled_.num_threads, arguments.data());
}

} // namespace gradc
