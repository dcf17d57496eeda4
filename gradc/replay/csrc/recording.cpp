#include "replay/csrc/recording.h"

#include <iterator>

namespace gradc {

bool are_equal(const Numbers& numbers, const std::vector<Term>& terms, const Numbers& symbols) {
  if (numbers.size() != terms.size()) {
    return false;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != terms[i].at(symbols)) {
      return false;
    }
  }
  return true;
}

Numbers symbol_values(const Walk& walk, const Recording& recording) {
  Numbers values;
  for (const auto position : recording.symbols) {
    values.push_back(walk.numbers[position]);
  }
  return values;
}

bool fits(const Walk& walk, const Recording& recording, bool is_proven) {
  if (!(walk.key == recording.key) || !walk.has_order(recording.order, recording.ties)) {
    return false;
  }
  if (recording.symbols.empty()) {
    if (walk.numbers != recording.numbers) {
      return false;
    }
  } else {
    const auto values = symbol_values(walk, recording);
    if (!are_equal(walk.numbers, recording.terms, values) || (is_proven && !recording.proven.count(values))) {
      return false;
    }
  }
  for (size_t i = 0; i < recording.offsets.size(); ++i) {
    if (walk.tensors[i].storage_offset() != recording.offsets[i]) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<Recording> Recordings::find(const Walk& walk, bool is_proven) {
  const std::lock_guard lock(mutex_);
  for (auto it = known_.begin(); it != known_.end(); ++it) {
    if (fits(walk, **it, is_proven)) {
      known_.splice(known_.begin(), known_, it);
      return known_.front();
    }
  }
  return nullptr;
}

void Recordings::keep(std::shared_ptr<Recording> recording) {
  std::list<std::shared_ptr<Recording>> dropped; // without the lock: plans and what Python made for them
  const std::lock_guard lock(mutex_);
  known_.push_front(std::move(recording));
  while (known_.size() > limit_) {
    dropped.splice(dropped.begin(), known_, std::prev(known_.end()));
  }
}

void Recordings::prove(const std::shared_ptr<Recording>& recording, Numbers values) {
  constexpr size_t max_proven = 4096;
  const std::lock_guard lock(mutex_);
  if (recording->proven.size() >= max_proven) {
    recording->proven.clear();
  }
  recording->proven.insert(std::move(values));
}

void Recordings::clear() {
  std::list<std::shared_ptr<Recording>> dropped;
  const std::lock_guard lock(mutex_);
  known_.swap(dropped);
}

size_t Recordings::size() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

} // namespace gradc
