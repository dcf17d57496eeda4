// Replays the recording of a backward pass over a new walk of a graph like the one recorded.
#pragma once

#include "replay/csrc/recording.h"

namespace gradc {

// `gave_up` is set if an EngineRun had to finish, since a boundary did what it did not when recorded.
variable_list replay(Walk& walk, const Recording& recording, bool& gave_up);

} // namespace gradc
