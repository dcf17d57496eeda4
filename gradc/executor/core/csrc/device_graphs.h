// Runs of a plan as graphs of its device: recorded once, replayed as one launch.
//
//     by its steps, a few times --(the same situation again)--> recorded --> replayed, while the situation fits
//
// Bits.       A replay makes the same kernel calls in the same order, on the same sizes, strides and alignment: they are eager's. What else
//             they depend on is the situation: the stream, and torch's switches of precision and determinism. Draws are of the
//             device's default generator, which a replay moves on as the calls would have.
// Inputs.     Those that lie where they lay are read there; those that moved are copied to where the recording reads them. An
//             input that the plan writes to has to stay where it was.
// Outputs.    What leaves is a new tensor on memory of the recording, which lends it: while anybody holds it, the memory is not written
//             again, and such a call takes another recording, or the steps. Few outputs that are held for long are copied instead.
// Otherwise   the plan runs by its steps, as it does where a mode, a profiler or a capture of the user's looks on.
// Threads.    One at a time records or replays a plan; another one that comes meanwhile goes by the steps.
#pragma once

#include "executor/core/csrc/plan.h"

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace gradc {

class DeviceGraph;

// What torch's kernels choose by, besides their arguments.
using Switches = std::vector<int64_t>;

struct Situation {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  Switches switches;
  bool operator==(const Situation&) const = default;
};

class DeviceGraphs {
 public:
  using Values = std::vector<c10::IValue>;

  // Those of a plan; null where its device records none, or where none can be made of it, which is told.
  static std::shared_ptr<DeviceGraphs> of(const Plan& plan);

  explicit DeviceGraphs(c10::Device device);
  ~DeviceGraphs();
  DeviceGraphs(const DeviceGraphs&) = delete;
  DeviceGraphs& operator=(const DeviceGraphs&) = delete;

  Values run(const Plan& plan, Values inputs, Values* left);

 private:
  // Where one input lay in the latest runs by the steps.
  class Places {
   public:
    void note(const void* place);
    // Whether it has lain in two places. A copy costs little beside a run that finds it in a third.
    bool has_moved() const {
      return has_moved_;
    }

   private:
    std::optional<const void*> last_;
    bool has_moved_ = false;
  };

  // The latest runs, by the steps, of inputs of some sizes.
  struct Visits {
    size_t sizes = 0; // a hash
    Situation situation;
    std::vector<Places> places;
    std::vector<bool> do_move;
    int64_t num_missed = 0;
    bool is_steady = false; // the same inputs move as the time before
  };

  Visits& visits_of(size_t sizes);
  bool is_worth_recording(const Values& inputs, const Situation& now);
  DeviceGraph* find(const Values& inputs, const Situation& now);
  Values record(const Plan& plan, const Values& inputs, const Situation& now);
  void make_room();

  const c10::Device device_;
  std::mutex mutex_;
  std::list<std::unique_ptr<DeviceGraph>> graphs_; // the last used first
  std::list<Visits> visits_; // likewise
  int64_t num_recorded_ = 0;
  bool has_failed_ = false;
};

// How often a plan runs by its steps before it is recorded, for the first time: 2. With 0, it is recorded whatever moves.
void set_runs_before_graphs(int64_t runs);

// Who is told what became of a plan: "recorded", each time; or "by calls: why", once.
using TellOfGraphs = std::function<void(const std::string& what, const std::string& plan)>;
void tell_of_device_graphs(TellOfGraphs tell);

// How often recordings have been replayed in this process.
int64_t num_replays();

} // namespace gradc
