// The key of a walked graph in words, part by part: what two backward passes have to have in common for one recording.
#pragma once

#include "walk/csrc/walk.h"

#include <string>
#include <utility>
#include <vector>

namespace gradc {

// (name, value) of each part. For people, and for tests: no look-up uses it.
std::vector<std::pair<std::string, std::string>> in_words(const Walk& walk);

} // namespace gradc
