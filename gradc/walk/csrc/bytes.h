// Bytes that grow by appending, and are compared: the key of a walked graph, and what a boundary's results must look like.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace gradc {

// A vector of chars would check and move for each number.
class Bytes {
 public:
  Bytes() = default;
  Bytes(const uint8_t* begin, const uint8_t* end) {
    add(begin, end - begin);
  }
  void add(const void* bytes, size_t count) {
    if (size_ + count > capacity_) {
      grow(count);
    }
    std::memcpy(data_.get() + size_, bytes, count);
    size_ += count;
  }
  void reserve(size_t count) {
    if (count > capacity_) {
      grow(count - size_);
    }
  }
  size_t size() const {
    return size_;
  }
  const uint8_t* data() const {
    return data_.get();
  }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && std::memcmp(data(), other.data(), size_) == 0;
  }

 private:
  void grow(size_t count) {
    capacity_ = std::max(2 * capacity_, size_ + count);
    std::unique_ptr<uint8_t[]> larger(new uint8_t[capacity_]);
    if (size_ > 0) {
      std::memcpy(larger.get(), data_.get(), size_);
    }
    data_ = std::move(larger);
  }

  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

template <typename T>
void append(Bytes& key, T value) {
  key.add(&value, sizeof(T));
}

} // namespace gradc
