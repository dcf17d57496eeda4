#include "executor/core/csrc/sized_plans.h"

#include "csrc/timing.h"

#include <algorithm>
#include <atomic>

namespace gradc {
namespace {

constexpr size_t most_visited = 32; // sizes of a plan

std::atomic<int64_t> visits_before = 2;

// Of the process.
class Credit {
 public:
  bool allows() const {
    return left_ > 0;
  }
  void pay(double seconds) {
    add(-seconds);
  }
  void earn(double seconds) {
    if (left_.load(std::memory_order_relaxed) < most) {
      add(seconds / runs_to_pay);
    }
  }

 private:
  static constexpr double most = 0.5, runs_to_pay = 100;

  void add(double seconds) {
    double left = left_;
    while (!left_.compare_exchange_weak(left, std::min(most, left + seconds))) {
    }
  }

  std::atomic<double> left_ = most;
};

Credit credit;

} // namespace

SizedPlans::Found SizedPlans::find(const Symbols& values) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Visited& visited = visit(sizes_of(values));
  if (visited.plan) {
    credit.earn(visited.seconds);
    return {visited.plan};
  }
  const bool may_cost = visits_before == 0 || credit.allows();
  const bool is_to_be_noted = visited.num_runs++ >= visits_before && may_cost && !visited.was_noted;
  visited.was_noted = visited.was_noted || is_to_be_noted;
  return {nullptr, is_to_be_noted};
}

void SizedPlans::make(const Symbols& values, const Layouts& layouts) {
  const Symbols sizes = sizes_of(values);
  const double start = thread_seconds();
  auto plan = make_(sizes, layouts);
  const double seconds = thread_seconds() - start;
  credit.pay(seconds);
  const std::lock_guard<std::mutex> lock(mutex_);
  Visited& visited = visit(sizes);
  visited.plan = std::move(plan);
  visited.seconds = seconds;
}

Symbols SizedPlans::sizes_of(const Symbols& values) const {
  Symbols sizes;
  sizes.reserve(symbols_.size());
  for (const size_t place : symbols_) {
    sizes.push_back(values[place]);
  }
  return sizes;
}

SizedPlans::Visited& SizedPlans::visit(const Symbols& sizes) {
  const auto place = std::find_if(visited_.begin(), visited_.end(), [&](const Visited& visited) { return visited.sizes == sizes; });
  if (place != visited_.end()) {
    visited_.splice(visited_.begin(), visited_, place);
  } else {
    visited_.push_front({sizes});
    visited_.resize(std::min(visited_.size(), most_visited));
  }
  return visited_.front();
}

void set_runs_before_sized_plans(int64_t runs) {
  visits_before = runs;
}

} // namespace gradc
