// Finding the stretches of a plan: which steps, which of their values are tensors, which calls form chains.
#include "executor/cpu/csrc/fused_block.h"

#include "executor/cpu/csrc/cross_entropy_backward.h"
#include "executor/cpu/csrc/direct.h"
#include "executor/cpu/csrc/memory.h"
#include "executor/cpu/csrc/fused_block_known.h"
#include "executor/cpu/csrc/fused_block_places.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace gradc {
namespace {

constexpr Index most_steps = 1024; // of a stretch: values are placed by looking at all others
constexpr int64_t most_arena_bytes = 1 << 20;

// Where a slot lies: in its root's memory, `offset` bytes behind the start of the root's tensor.
struct Place {
  size_t root = 0;
  int64_t offset = 0;
};

// One stretch in the making: the steps from `begin` on, as many as belong to it, up to those of another.
class Finder {
 public:
  Finder(const Known& known, const Stretches& others, Index begin)
      : known_(known), plan_(known.plan), others_(others), begin_(begin) {}

  // Null if it would save nothing.
  std::shared_ptr<Stretch> find() {
    take_steps();
    if (num_direct_ < 2) {
      return nullptr;
    }
    find_tensors();
    make_calls();
    form_chains();
    note_uses();
    place(roots_, *stretch_);
    release_tensors();
    resolve_addresses();
    return stretch_;
  }

  Index end() const {
    return end_;
  }

 private:
  const Step& step_at(Index index) const {
    return plan_.steps[index];
  }

  const Meta& meta_of(Index slot) const {
    return *plan_.metas[slot];
  }

  // ---- steps

  void take_steps() {
    const auto most = std::min(begin_ + most_steps, static_cast<Index>(plan_.steps.size()));
    for (end_ = begin_; end_ < most && !others_[end_] && take(step_at(end_)); ++end_) {
    }
  }

  // Adds a step with what it makes to the stretch; false if it does not belong to one.
  bool take(const Step& step) {
    if (step.device != c10::DeviceType::CPU || meets_written(step)) {
      return false;
    }
    if (!step.views.empty()) {
      return take_views(step);
    }
    if (step.exact.direct && (!is_in_place(step) || may_write(step))) {
      direct_.insert(end_);
      ++num_direct_;
    } else if (!may_call_with_tensors(plan_, step)) {
      return false;
    }
    for (const Index slot : step.reads) {
      place_of(slot);
    }
    if (!is_in_place(step)) {
      for (const Index out : step.outs) {
        make_root(out);
      }
    }
    return true;
  }

  // Whether it reads an outside tensor, not seen yet, that shares memory with one that is written.
  bool meets_written(const Step& step) const {
    return std::any_of(step.reads.begin(), step.reads.end(), [&](Index slot) {
      return !places_.contains(slot) && std::any_of(stretch_->written.begin(), stretch_->written.end(), [&](Index written) {
        return known_.family[written] == known_.family[slot];
      });
    });
  }

  void make_root(Index slot) {
    if (slot >= 0) {
      places_[slot] = {roots_.size(), 0};
      roots_.push_back({slot, end_, static_cast<int64_t>(num_bytes(meta_of(slot)))});
    }
  }

  bool take_views(const Step& step) {
    for (const View& view : step.views) {
      const Place base = place_of(view.base);
      const auto size = static_cast<int64_t>(c10::elementSize(meta_of(view.slot).dtype));
      places_[view.slot] = {base.root, base.offset + view.offset * size};
    }
    return true;
  }

  // In place: nothing else that is read, nor another tensor made before, may share memory with what is written.
  bool may_write(const Step& step) {
    const auto& inputs = step.exact.inputs;
    if (step.outs[0] >= 0 && step.outs[0] != inputs[0]) {
      return false;
    }
    const size_t root = place_of(inputs[0]).root;
    const auto shares = [&](Index slot) { return known_.family[slot] == known_.family[inputs[0]]; };
    if (std::any_of(inputs.begin() + 1, inputs.end(), shares)) {
      return false;
    }
    if (roots_[root].made >= 0) {
      return true;
    }
    const Index slot = roots_[root].slot;
    const auto is_its_alias = [&](const Root& other) { return other.slot != slot && other.made < 0 && shares(other.slot); };
    if (std::any_of(roots_.begin(), roots_.end(), is_its_alias)) {
      return false;
    }
    if (std::find(stretch_->written.begin(), stretch_->written.end(), slot) == stretch_->written.end()) {
      stretch_->written.push_back(slot);
    }
    return true;
  }

  Place place_of(Index slot) {
    if (const auto found = places_.find(slot); found != places_.end()) {
      return found->second;
    }
    roots_.push_back({slot, -1});
    return places_[slot] = {roots_.size() - 1, 0};
  }

  // ---- tensors

  bool is_direct(Index index) const {
    return direct_.contains(index);
  }

  // Which slots must hold tensors: those that leave, those that a call wants as tensors, and what these are views of.
  void find_tensors() {
    for (const auto& [slot, place] : places_) {
      if (known_.last_read[slot] >= end_ || (roots_[place.root].slot == slot && roots_[place.root].made < 0)) {
        need(slot);
      }
    }
    for (Index index = begin_; index < end_; ++index) {
      const Step& step = step_at(index);
      if (!is_direct(index) && step.views.empty()) {
        std::for_each(step.reads.begin(), step.reads.end(), [&](Index slot) { need(slot); });
        std::for_each(step.outs.begin(), step.outs.end(), [&](Index slot) { need(slot); });
      }
    }
    find_shown();
    fit_arena();
    for (bool changed = true; changed;) {
      const size_t before = needed_.size();
      for (Index index = begin_; index < end_; ++index) {
        need_with(step_at(index));
      }
      changed = needed_.size() != before;
    }
  }

  // Where nothing but one view of a value must be a tensor, as of a weight's gradient its transpose, the value's own tensor would be
  // made for nothing. Not of what is written into: its version is the view's.
  void find_shown() {
    for (Root& root : roots_) {
      const bool may_show = root.made >= 0 && is_direct(root.made) && !is_needed(root.slot);
      root.shown = may_show ? root.slot : -1;
    }
    for (Index index = begin_; index < end_; ++index) {
      const Step& step = step_at(index);
      for (const View& view : step.views) {
        Root& root = roots_[places_[view.slot].root];
        if (is_needed(view.slot) && root.shown >= 0) {
          root.shown = root.shown == root.slot && step.views.size() == 1 && !view.is_same ? view.slot : -1;
        }
      }
      for (const Index slot : step.writes) {
        if (const auto place = places_.find(slot); place != places_.end()) {
          roots_[place->second.root].shown = -1;
        }
      }
    }
    for (Root& root : roots_) {
      root.shown = root.shown == root.slot ? -1 : root.shown;
    }
  }

  bool is_shown(Index slot) const {
    const auto place = places_.find(slot);
    return place != places_.end() && roots_[place->second.root].shown == slot;
  }

  void need(Index slot) {
    needed_.insert(slot);
  }

  bool is_needed(Index slot) const {
    return needed_.contains(slot);
  }

  // What a step's tensors need beside themselves: a view its base, and all views of the call; a version counter its owner.
  void need_with(const Step& step) {
    const auto& views = step.views;
    const auto is_made = [&](const View& view) { return is_needed(view.slot) && !is_shown(view.slot); };
    const bool makes_tensors = std::any_of(views.begin(), views.end(), is_made);
    for (const View& view : step.views) {
      if (makes_tensors) {
        need(view.slot);
        need(view.base);
      }
    }
    for (const auto& [view, base] : step.shares) {
      const Root& root = roots_[places_[base].root];
      if (root.made < 0 || is_needed(root.slot)) {
        need(view);
        need(base);
      }
    }
  }

  // Values that are too large for the arena are tensors.
  void fit_arena() {
    for (const Root& root : roots_) {
      if (root.made >= 0 && root.shown < 0 && root.bytes > most_arena_bytes / 4) {
        need(root.slot);
      }
    }
  }

  // ---- calls

  void make_calls() {
    for (Index index = begin_; index < end_; ++index) {
      const Step& step = step_at(index);
      if (step.views.empty() || (is_needed(step.views[0].slot) && !is_shown(step.views[0].slot))) {
        add_call(index);
      }
    }
  }

  void add_call(Index index) {
    const Step& step = step_at(index);
    StretchCall call{index, is_direct(index)};
    if (call.is_direct) {
      stretch_->needs_full_precision = stretch_->needs_full_precision || step.exact.needs_full_precision;
      if (!is_in_place(step)) {
        make(step.outs[0], call);
      }
      for (const Index slot : step.writes) {
        if (is_needed(slot)) {
          call.bumps.push_back(slot);
        }
      }
    }
    stretch_->calls.push_back(std::move(call));
  }

  // The tensor that takes the result in `slot`, if there is one.
  void make(Index slot, StretchCall& call) const {
    const auto place = places_.find(slot);
    const Index shown = place == places_.end() ? -1 : roots_[place->second.root].shown;
    if (shown >= 0) {
      call.makes = shown;
      call.view_offset = places_.at(shown).offset / static_cast<int64_t>(c10::elementSize(meta_of(shown).dtype));
    } else if (is_needed(slot)) {
      call.makes = slot;
    }
    call.made_bytes = num_bytes(meta_of(slot));
  }

  // ---- chains

  Index target_of(const Step& step) const {
    return is_in_place(step) ? step.exact.inputs[0] : step.outs[0];
  }

  bool is_loop(const StretchCall& call) const {
    const auto* pointwise = std::get_if<Pointwise>(&step_at(call.step).exact.payload);
    return call.is_direct && pointwise &&
        std::all_of(pointwise->inputs.begin(), pointwise->inputs.end(), [](const auto& input) { return input.sizes.empty(); });
  }

  void form_chains() {
    auto& calls = stretch_->calls;
    for (size_t i = 0; i < calls.size(); i += calls[i].chain) {
      while (is_loop(calls[i]) && i + calls[i].chain < calls.size() && may_follow(i, calls[i].chain)) {
        ++calls[i].chain;
      }
    }
  }

  // True if the call behind the chain of `length` calls from `first` on may run part by part with it.
  bool may_follow(size_t first, Index length) const {
    const auto& calls = stretch_->calls;
    const StretchCall& next = calls[first + length];
    const Step& step = step_at(next.step);
    const auto is_aligned = [&](const StretchCall& before) { return meet_alike(step_at(before.step), step); };
    const auto size = [&](const StretchCall& call) { return payload_as<Pointwise>(step_at(call.step).exact.payload).size; };
    return is_loop(next) && step.reuse < 0 && size(next) == size(calls[first]) &&
        std::all_of(calls.begin() + first, calls.begin() + first + length, is_aligned);
  }

  // True if a call meets what one before it reads and writes at the very same elements, or not at all.
  bool meet_alike(const Step& before, const Step& step) const {
    const auto meets = [&](Index one, Index other) {
      return is_same_memory(one, other) || places_.at(one).root != places_.at(other).root;
    };
    const auto all_meet = [&](const Step& reader, Index written) {
      const auto& reads = reader.exact.inputs;
      return std::all_of(reads.begin(), reads.end(), [&](Index slot) { return meets(slot, written); });
    };
    return all_meet(step, target_of(before)) && all_meet(before, target_of(step)) && meets(target_of(step), target_of(before));
  }

  bool is_same_memory(Index one, Index other) const {
    const Place &a = places_.at(one), &b = places_.at(other);
    return a.root == b.root && a.offset == b.offset && meta_of(one).dtype == meta_of(other).dtype;
  }

  // ---- lifetimes

  void note_uses() {
    for (Root& root : roots_) {
      root.is_tensor = is_needed(root.slot) || root.shown >= 0;
      root.first = stretch_->calls.size() - 1;
    }
    for (size_t i = 0; i < stretch_->calls.size(); ++i) {
      const Step& step = step_at(stretch_->calls[i].step);
      std::for_each(step.reads.begin(), step.reads.end(), [&](Index slot) { note_use(slot, i); });
      std::for_each(step.outs.begin(), step.outs.end(), [&](Index slot) { note_use(slot, i); });
    }
  }

  void note_use(Index slot, size_t call) {
    if (slot >= 0) {
      Root& root = roots_[places_.at(slot).root];
      root.first = std::min(root.first, call);
      root.last = std::max(root.last, call);
    }
  }

  // A tensor is let go behind the step where it dies, but not while something is still read at its address.
  void release_tensors() {
    auto& calls = stretch_->calls;
    size_t done = 0; // calls up to the step
    for (Index index = begin_; index < end_; ++index) {
      done += done < calls.size() && calls[done].step == index;
      const Step& step = step_at(index);
      for (const Index slot : step.deaths) {
        release(slot, done);
      }
      if (step.reuse >= 0) {
        release(step.reuse, done);
      }
    }
  }

  void release(Index slot, size_t done) {
    const auto place = places_.find(slot);
    if (place != places_.end() && !is_needed(slot)) {
      return;
    }
    size_t last = done ? done - 1 : 0;
    if (place != places_.end()) {
      const Root& root = roots_[place->second.root];
      last = root.slot == slot || root.shown == slot ? std::max(last, root.last) : last;
    }
    stretch_->calls[last].releases.push_back(slot);
  }

  // ---- addresses

  Address address_of(Index slot) const {
    const Place& place = places_.at(slot);
    const Address& start = roots_[place.root].address;
    return {start.buffer, start.offset + place.offset};
  }

  void resolve_addresses() {
    for (StretchCall& call : stretch_->calls) {
      const Step& step = step_at(call.step);
      if (call.is_direct) {
        call.out = address_of(target_of(step));
        for (const Index slot : step.exact.inputs) {
          call.inputs.push_back(address_of(slot));
        }
      } else if (!is_in_place(step) && step.views.empty()) {
        add_results(step, call);
      }
    }
    for (const Root& root : roots_) {
      if (root.made < 0) {
        stretch_->outside.push_back({root.slot, root.address.buffer});
      }
    }
    stretch_->end = end_;
  }

  void add_results(const Step& step, StretchCall& call) const {
    for (const Index slot : step.outs) {
      if (slot >= 0) {
        call.results.push_back({slot, address_of(slot).buffer});
      }
    }
  }

  const Known& known_;
  const Plan& plan_;
  const Stretches& others_;
  const Index begin_;
  Index end_ = 0;
  int num_direct_ = 0;
  std::map<Index, Place> places_;
  std::vector<Root> roots_;
  std::unordered_set<Index> direct_, needed_; // steps that are called directly; slots that hold tensors
  std::shared_ptr<Stretch> stretch_ = std::make_shared<Stretch>();
};

} // namespace

std::shared_ptr<const Stretch> as_one_call(const Plan& plan, Index begin, Index end, Exact merged) {
  auto stretch = std::make_shared<Stretch>();
  StretchCall call{end - 1, /*is_direct=*/true};
  for (const Index slot : merged.inputs) {
    stretch->outside.push_back({slot, stretch->num_buffers});
    call.inputs.push_back({stretch->num_buffers++, 0});
  }
  call.makes = plan.steps[call.step].outs[0];
  call.out = {stretch->num_buffers++, 0};
  call.made_bytes = num_bytes(*plan.metas[call.makes]);
  for (Index index = begin; index < end; ++index) {
    const Step& step = plan.steps[index];
    call.releases.insert(call.releases.end(), step.deaths.begin(), step.deaths.end());
    if (step.reuse >= 0) {
      call.releases.push_back(step.reuse);
    }
  }
  call.merged = std::make_shared<const Exact>(std::move(merged));
  stretch->calls.push_back(std::move(call));
  stretch->end = end;
  return stretch;
}

Stretches find_stretches(const Plan& plan) {
  Stretches found(plan.steps.size());
  if (plan.is_dispatched) {
    return found;
  }
  const Known known(plan);
  const auto num_steps = static_cast<Index>(plan.steps.size());
  for (Index begin = 0; begin < num_steps; ++begin) {
    found[begin] = find_cross_entropy_backward(known, begin);
  }
  for (Index begin = 0; begin < num_steps;) {
    if (found[begin]) {
      begin = found[begin]->end;
      continue;
    }
    Finder finder(known, found, begin);
    found[begin] = finder.find();
    begin = std::max(finder.end(), begin + 1);
  }
  return found;
}

} // namespace gradc
