// Streams of devices: work that is asked for on one stream runs in the order in which it was asked for.
//
//     current_stream(device) -> stream          is_captured(device)          is_ordered(tensor)          runs_here(node)          -> bool
//
// torch's engine runs a node on the stream of its forward, and lets streams wait for each other. Where all are the one that is current
// anyway, there is nothing to wait for, and a backward may be asked for in its caller's thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

namespace gradc {

// This thread's stream of a device, or what stands for one where the device has none.
c10::Stream current_stream(c10::Device device);

// True while a graph is captured from the current stream of a device.
bool is_captured(c10::Device device);

// True of a tensor on the CPU, where a call is over when it returns, and on the accelerator, whose calls go to the current stream.
bool is_ordered(const at::Tensor& tensor);

// Whether the engine would run the node on the stream that is current here.
bool runs_here(const torch::autograd::Node& node);

} // namespace gradc
