// Plans of a Program with symbols for sizes that came back: static ones, as if it had been captured for these sizes.
//
// A plan with symbols calls each op through its dispatch: nothing is known of sizes beforehand. In a run for sizes that come for the third
// time it is noted how each tensor lies in memory, and a static plan is made of that, with exact calls and stretches (devices.h). It makes
// the same kernel calls, on the same sizes.
//
// Costs.      To make one takes as long as some hundred runs. All that a process makes is paid from one credit of half a second; each run
//             of such a plan gives back a hundredth of what the plan has cost, about what it saves.
// Memory.     The plans for the sizes seen last are kept.
// Threads.    Any number may ask. One of them makes it, without the lock, since that takes the GIL; the others go by symbols meanwhile.
#pragma once

#include "executor/core/csrc/plan.h"

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace gradc {

class SizedPlans {
 public:
  // For the values of the symbols that sizes depend on. Takes the GIL.
  using Make = std::function<std::shared_ptr<const Plan>(const Symbols&, const Layouts&)>;

  // `symbols`: places of these among the plan's.
  SizedPlans(std::vector<size_t> symbols, Make make) : symbols_(std::move(symbols)), make_(std::move(make)) {}

  // What runs for these values of all symbols: a plan for them, or the one with symbols; which is to be noted if one is to be made.
  struct Found {
    std::shared_ptr<const Plan> plan;
    bool is_to_be_noted = false;
  };
  Found find(const Symbols& values);

  // Makes the plan for the sizes of a run that was noted.
  void make(const Symbols& values, const Layouts& layouts);

 private:
  struct Visited {
    Symbols sizes;
    int64_t num_runs = 0;
    bool was_noted = false;
    std::shared_ptr<const Plan> plan;
    double seconds = 0; // that it took
  };

  Symbols sizes_of(const Symbols& values) const;
  Visited& visit(const Symbols& sizes);

  const std::vector<size_t> symbols_;
  const Make make_;
  std::mutex mutex_;
  std::list<Visited> visited_; // the last first
};

// How often sizes come before a plan is made for them: 2. With 0, one is made for all, whatever that costs.
void set_runs_before_sized_plans(int64_t runs);

} // namespace gradc
